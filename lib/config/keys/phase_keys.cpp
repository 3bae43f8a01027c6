// The keys of the list phases.
#include "config/keys/key_rows.h"

namespace scaletrain {

using namespace key_rows;  // NOLINT(google-build-using-namespace)

void key_rows::add_phases(KeyTable<Config>& table) {
  table.push_back(list_row({"phases", "",
                            "Parts of the run, one behind the other, each with its own length, context, mix, batch or "
                            "learning rate; what one does not say is the run's.",
                            with_notice, "[]"},
                           "list of phases", phase_table(), FIELD(train.phases)));
}

const KeyTable<PhaseConfig>& phase_table() {
  static const KeyTable<PhaseConfig> table = [] {
    KeyTable<PhaseConfig> out;
    out.push_back(row<PhaseConfig>({"steps", "steps", "Its length; exactly one of steps and tokens.", with_notice},
                                   optional(at_least(1)), FIELD(steps)));
    out.push_back(row<PhaseConfig>(
        {"tokens", "tokens", "Its length as whole steps of full samples that have at least so many.", with_notice},
        optional(at_least(1)), FIELD(tokens)));
    out.push_back(row<PhaseConfig>(
        {"context", "tokens", "Tokens per sample; divides model.context.", with_notice, "model.context"},
        optional(at_least(2, kMaxContext)), FIELD(context)));
    out.push_back(
        row<PhaseConfig>({"global_batch", "samples", "Samples per optimizer step; at most train.global_batch.",
                          with_notice, "train.global_batch"},
                         optional(at_least(1, kMaxBatch)), FIELD(global_batch)));
    out.push_back(row<PhaseConfig>({"weights", "",
                                    "Shares of the mix by data.train[].name; sources that are not named are not read "
                                    "in it. null: data.train's.",
                                    with_notice, "null"},
                                   WeightsCodec(), FIELD(weights)));
    out.push_back(row<PhaseConfig>({"learning_rate_factor", "", "On what train.lr_schedule says.", with_notice},
                                   NumberCodec{0.0, 1e6}, FIELD(learning_rate_factor)));
    return out;
  }();
  return table;
}

}  // namespace scaletrain
