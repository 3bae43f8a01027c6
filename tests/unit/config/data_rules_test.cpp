#include <doctest/doctest.h>

#include "config_helpers.h"

using namespace scaletrain;

namespace {
const std::string kWithSets =
    "data: {train: [{path: a}], validation: [{name: web, path: b}, {name: books, path: c}]}\ntrain: {steps: 200}\n";
}

TEST_CASE("validation sets have distinct plain names") {
  CHECK(contains(errors_of(kWithSets, {"data.validation.1.name=web"}),
                 "data.validation.1.name: \"web\" names two validation sets; give each a name of its own"));
  CHECK(contains(errors_of(kWithSets, {"data.validation.1.name=../x"}), "expected a plain name"));
}

TEST_CASE("what a source holds out is a validation set beside the others, and stands in no file twice") {
  const std::string text =
      "data:\n  train: [{path: /a}, {path: /web, field: body, split: {validation: 1%, name: held}}]\n"
      "  validation: [{name: books, path: /books}]\ntrain: {steps: 200}\n"
      "early_stop: {metric: validation/held/loss}\n";
  const Config config = load_text(text, {}).config;
  CHECK(config.data.train[1].split->validation == 0.01);
  REQUIRE(config.data.validation.size() == 2);
  CHECK(config.data.validation[1].name == "held");
  CHECK(config.data.validation[1].path == "/web");
  CHECK(config.data.validation[1].field == "body");
  CHECK(config.data.validation[1].held_out_of == std::size_t{1});
  CHECK(validation_key(config.data, 0) == "data.validation.0");
  CHECK(validation_key(config.data, 1) == "data.train.1.split");
  const std::string resolved = resolved_yaml(config);
  CHECK(contains(resolved, "split: {validation: 0.01, name: held}"));
  CHECK_FALSE(contains(resolved, "name: held, path"));
  const Config again = parse_resolved_config(resolved, "config.yaml");
  CHECK(again.data.validation.size() == 2);
  CHECK(resolved_yaml(again) == resolved);
  CHECK(compare_configs(config, again).empty());

  const auto errors = [&](const std::string& set) { return errors_of(text, {set}); };
  CHECK(contains(errors("data.train.1.split.name=books"), "\"books\" names two validation sets"));
  CHECK(contains(errors("data.train.0.split={validation: 1%}"), "data.train.0.split.name: is missing"));
  CHECK(contains(errors("data.train.0.split={name: x}"), "data.train.0.split.validation: is missing"));
  CHECK(contains(errors("data.train.1.split={validation: 1%, name: x, test: 1%}"),
                 "unknown key \"data.train.1.split.test\""));
  CHECK(contains(errors("data.train.1={path: /a.bin, type: tokens, split: {validation: 1%, name: held}}"),
                 "data.train.1.split: documents are held out of text"));
  for (const char* const share : {"0", "1", "100%", "-1%", "%", "99,1", "some", "1%%"}) {
    CAPTURE(share);
    CHECK(contains(errors(std::string("data.train.1.split.validation='") + share + "'") +
                       errors(std::string("data.train.1.split.validation=") + share),
                   "expected a share between nothing and all, such as 1% or 0.01"));
  }
  CHECK(load_text(text, {"data.train.1.split.validation=0.25"}).config.data.train[1].split->validation == 0.25);
  CHECK(load_text(text, {"data.train.1.split.validation=12.5 %"}).config.data.train[1].split->validation == 0.125);
}

TEST_CASE("early stopping watches a metric that exists") {
  CHECK(errors_of(kWithSets, {"early_stop={metric: validation/books/loss}"}) == "accepted");
  CHECK(contains(errors_of(kWithSets, {"early_stop={metric: validation/boks/loss}"}),
                 "early_stop.metric: \"validation/boks/loss\" is no metric of this run; there is validation/web/loss, "
                 "validation/books/loss"));
  CHECK(contains(override_errors({"early_stop={metric: validation/web/loss}"}), "there is nothing to watch"));
  CHECK(contains(errors_of(kWithSets, {"early_stop.patience=3"}),
                 "early_stop.metric: is missing: what to watch: validation/NAME/loss or task/NAME/accuracy, such as "
                 "metric: validation/books/loss"));
  CHECK(contains(errors_of(kWithSets, {"early_stop={metric: validation/web/loss}", "evaluate.every=0"}),
                 "evaluate.every is 0"));
}

TEST_CASE("tasks have distinct names, a tokenizer that reads text, and an accuracy to watch") {
  const std::string tasks = "evaluate.tasks=[{name: easy, path: e.jsonl}, {name: hard, path: h.jsonl}]";
  CHECK(override_errors({tasks}) == "accepted");
  CHECK(override_errors({tasks, "early_stop={metric: task/hard/accuracy, target: 0.5}"}) == "accepted");
  CHECK(contains(override_errors({tasks, "early_stop={metric: task/hrd/accuracy}"}),
                 "early_stop.metric: \"task/hrd/accuracy\" is no metric of this run; there is task/easy/accuracy, "
                 "task/hard/accuracy"));
  CHECK(contains(override_errors({tasks, "evaluate.tasks.1.name=easy"}), "\"easy\" names two tasks"));
  CHECK(contains(override_errors({"evaluate.tasks=[{name: easy}]"}), "evaluate.tasks.0.path: is missing"));
  CHECK(contains(errors_of("data: {tokenizer: {type: ids}, train: [{path: a, type: tokens}]}\ntrain: {steps: 200}\n"
                           "model: {vocab: 100}\n",
                           {tasks}),
                 "need a tokenizer that reads it, which ids is not"));
}

TEST_CASE("sources fit their kind and the tokenizer") {
  const std::string ids =
      "data: {tokenizer: {type: ids}, train: [{path: a, type: text}]}\ntrain: {steps: 200}\n"
      "model: {vocab: 100}\n";
  CHECK(contains(errors_of(ids), "c.yaml:1:56: data.train.0.type: text needs a tokenizer that reads text"));
  CHECK(errors_of(ids, {"data.train.0.type=tokens", "data.tokenizer.end_of_document=99"}) == "accepted");
  CHECK(contains(errors_of(ids, {"data.train.0.type=tokens", "data.tokenizer.end_of_document=100"}),
                 "100 is outside of the vocabulary of 100"));
  CHECK(contains(errors_of(ids, {"data.train.0.type=tokens", "model.vocab=auto"}),
                 "model.vocab: auto needs a tokenizer"));
  CHECK(contains(override_errors({"data.tokenizer.end_of_document=3"}),
                 "tokenizer bytes has a token for it already; leave it out"));
  CHECK(contains(override_errors({"data.tokenizer.type=bpe"}), "data.tokenizer.path: tokenizer bpe needs it"));
  CHECK(contains(override_errors({"data.tokenizer.path=x"}), "tokenizer bytes has no files"));
  CHECK(contains(override_errors({"data.train.0={type: text, field: body}"}), "data.train.0.field: only for jsonl"));
  CHECK(contains(override_errors({"data.train.0={type: jsonl, separator: x}"}), "separator: only for text"));
  CHECK(override_errors({"data.train.0={separator: x, field: body}"}) == "accepted");
  CHECK(override_errors({"data.train.0.separator=\"\""}) == "accepted");
  CHECK(contains(override_errors({"data.train.0={records: messages, type: text}"}),
                 "data.train.0.records: messages are lines of jsonl; this source is text"));
  CHECK(contains(override_errors({"data.train.0={records: messages, field: body}"}),
                 "data.train.0.field: only for records of text; those of this source are messages"));
  CHECK(contains(override_errors({"data.train.0.records=chat"}), "expected one of text, messages, prompt_completion"));
  CHECK(contains(errors_of(ids, {"data.train.0={path: a, records: messages}"}),
                 "data.train.0.records: messages needs a tokenizer that reads text"));
  CHECK(override_errors({"data.train.0={records: prompt_completion, type: jsonl}"}) == "accepted");
  CHECK(contains(override_errors({"data.train.0.weight=0"}), "out of range; expected more than 0"));
  CHECK(contains(override_errors({"data.train=[]"}), "data.train: is empty; name at least one source"));
}

TEST_CASE("instructions do not see each other unless that is asked for") {
  const auto attention = [](const std::vector<std::string>& settings) {
    return load_text(kLeast, settings).config.data.documents.attention;
  };
  CHECK(attention({}) == DocumentAttention::across);
  CHECK(attention({"data.train.0.records=messages"}) == DocumentAttention::within);
  // Text beside them stays what it is without them.
  const std::string set = "data.validation=[{name: v, path: a, records: prompt_completion}]";
  CHECK(attention({set}) == DocumentAttention::instructions);
  CHECK(attention({set, "data.train.0.records=messages"}) == DocumentAttention::within);
  CHECK(attention({set, "data.documents.attention=within"}) == DocumentAttention::within);
  CHECK(attention({"data.train.0.records=messages", "data.validation=[{name: v, path: a}]"}) ==
        DocumentAttention::instructions);
  CHECK(attention({"data.train.0.records=messages", "data.documents.attention=across"}) == DocumentAttention::across);
}
