#!/usr/bin/env python3
"""Reads the event files of a run with TensorBoard itself and compares them with its metrics.jsonl.

    check_tensorboard.py RUN_FOLDER

Needs the Python packages tensorboard and, for the second reader, tensorboard-data-server (which `tensorboard` uses where
it is installed). Each must show one value per step and tag, those of the lines that no restart has made void. Ends with 1
where one differs. No test needs it: tests/unit/telemetry/event_file_test.cpp decodes the files by their description.
"""

import json
import math
import pathlib
import struct
import sys

TAGS = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu", "step_seconds", "loss_scale", "gpu_memory_in_use")


def single(value):
    """As event files store a number: in single precision."""
    return math.nan if value is None else struct.unpack("f", struct.pack("f", value))[0]


def expected(run):
    """{tag: {step: value}} by the restart rule; a torn last line is none."""
    shown = {}
    for line in (run / "metrics.jsonl").read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        record = json.loads(line)
        kind, step = record["kind"], record.get("step")
        if kind == "step":
            for tag in TAGS:
                if tag in record:
                    shown.setdefault(tag, {})[step] = single(record[tag])
        elif kind == "evaluation":
            shown.setdefault(f"validation/{record['dataset']}/loss", {})[step] = single(record["loss"])
        elif kind == "task":
            for which in ("accuracy", "normalized_accuracy"):
                shown.setdefault(f"task/{record['task']}/{which}", {})[step] = single(record[which])
        elif kind == "restart":
            for values in shown.values():
                for void in [s for s in values if s > step]:
                    del values[void]
    return {tag: values for tag, values in shown.items() if values}


def by_accumulator(folder):
    from tensorboard.backend.event_processing import event_accumulator

    # 0: every scalar, not a sample of them.
    reader = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.SCALARS: 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def by_web_backend(folder):
    """What the program `tensorboard` serves by its own Python reader."""
    from tensorboard.backend.event_processing import plugin_event_multiplexer, tag_types

    multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 0})
    multiplexer.AddRun(str(folder), "run")
    multiplexer.Reload()
    tags = multiplexer.Runs()["run"][tag_types.TENSORS]
    return {tag: [(e.step, e.tensor_proto.float_val[0]) for e in multiplexer.Tensors("run", tag)] for tag in tags}


def by_data_server(folder):
    """What it serves by the data server, which reads event files itself."""
    from tensorboard import context
    from tensorboard.data import server_ingester
    from tensorboard.util import grpc_util

    ingester = server_ingester.SubprocessServerDataIngester(
        server_binary=server_ingester.get_server_binary(),
        logdir=str(folder),
        reload_interval=0,
        channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
        samples_per_plugin={"scalars": 10**7},
    )
    ingester.start()
    provider = ingester.data_provider
    series = provider.read_scalars(
        context.RequestContext(), experiment_id="", plugin_name="scalars", downsample=10**7
    )
    assert list(series) == ["."], list(series)
    return {tag: [(d.step, d.value) for d in data] for tag, data in series["."].items()}


def same(one, other):
    return one == other or (math.isnan(one) and math.isnan(other))


def check(reader, folder, wanted):
    found = {tag: values for tag, values in reader(folder).items() if values}
    wrong = []
    if sorted(found) != sorted(wanted):
        wrong.append(f"tags {sorted(found)}, not {sorted(wanted)}")
    for tag in sorted(set(found) & set(wanted)):
        values, numbers = found[tag], wanted[tag]
        if [step for step, _ in values] != sorted(numbers):
            extra = sorted(set(s for s, _ in values) ^ set(numbers))
            wrong.append(f"{tag}: {len(values)} values for {len(numbers)} steps; they differ in steps {extra[:5]}")
        elif not all(same(value, numbers[step]) for step, value in values):
            wrong.append(f"{tag}: another value")
    print(f"{reader.__name__}: {len(found)} tags, {sum(map(len, found.values()))} values: " + ("; ".join(wrong) or "as in metrics.jsonl"))
    return not wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = pathlib.Path(sys.argv[1])
    wanted = expected(run)
    readers = [by_accumulator, by_web_backend]
    try:
        import tensorboard_data_server  # noqa: F401

        readers.append(by_data_server)
    except ImportError:
        print("by_data_server: tensorboard-data-server is not installed")
    results = [check(reader, run / "tensorboard", wanted) for reader in readers]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
