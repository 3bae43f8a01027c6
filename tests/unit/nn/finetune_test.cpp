#include "nn/finetune.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/glob.h"
#include "nn/model_spec.h"
#include "support/models/tiny_model.h"
#include "support/near.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

ModelSpec spec_of(bool llama, bool tied) {
  ModelConfig model = tiny_model({.layers = 2});
  if (llama) make_llama(model);
  model.tie_embeddings = tied;
  return make_model_spec(model, 61);
}

std::set<std::string> frozen_of(const ParamTable& table) {
  std::set<std::string> names;
  for (const Parameter& parameter : table.parameters())
    if (parameter.role == ParamRole::frozen) names.insert(parameter.name);
  return names;
}

std::set<std::string> frozen_by(std::vector<std::string> patterns, bool llama = false, bool tied = true) {
  ParamTable table = make_param_table(spec_of(llama, tied), InitConfig{});
  freeze_parameters(table, {.freeze = std::move(patterns)});
  return frozen_of(table);
}

std::string refusal_of(const std::vector<std::string>& patterns, bool llama = false) {
  return message_of<UserError>([&] { frozen_by(patterns, llama); });
}

}  // namespace

TEST_CASE("a pattern is the whole name, a star any characters of it and a question mark one") {
  CHECK(matches_name("blocks.0.ffn.up.weight", "blocks.0.ffn.up.weight"));
  CHECK_FALSE(matches_name("blocks.0", "blocks.0.ffn.up.weight"));
  CHECK_FALSE(matches_name("0.ffn.up.weight", "blocks.0.ffn.up.weight"));
  CHECK(matches_name("blocks.0.*", "blocks.0.ffn.up.weight"));
  CHECK_FALSE(matches_name("blocks.1.*", "blocks.10.ffn.up.weight"));
  CHECK(matches_name("blocks.?.*.weight", "blocks.7.ffn.up.weight"));
  CHECK_FALSE(matches_name("blocks.?.*", "blocks.17.ffn.up.weight"));
  CHECK(matches_name("*", ""));
  CHECK(matches_name("**", "a"));
  CHECK(matches_name("*a*b*c", "xxabyyabzzc"));
  CHECK_FALSE(matches_name("*a*b*c", "xxabyyabzzd"));
  CHECK_FALSE(matches_name("", "a"));
  CHECK_FALSE(matches_name("?", ""));
  CHECK(matches_name("*ab", "aaab"));
}

TEST_CASE("patterns freeze what they match, and of a tied tensor every copy") {
  CHECK(frozen_by({}).empty());
  CHECK(frozen_by({"*_norm.bias", "head.norm.*"}) ==
        std::set<std::string>{"blocks.0.attention_norm.bias", "blocks.0.ffn_norm.bias", "blocks.1.attention_norm.bias",
                              "blocks.1.ffn_norm.bias", "head.norm.bias", "head.norm.weight"});
  CHECK(frozen_by({"embedding.token.weight"}) == std::set<std::string>{"embedding.token.weight", "head.weight"});
  CHECK(frozen_by({"embedding.token.weight"}, true, false) == std::set<std::string>{"embedding.token.weight"});
  const ModelSpec spec = spec_of(true, false);
  ParamTable table = make_param_table(spec, InitConfig{});
  const std::vector<std::string> patterns = {"blocks.0.*"};
  const std::int64_t all = table.num_parameters();
  freeze_parameters(table, {.freeze = patterns});
  CHECK(table.num_parameters() == all);
  std::int64_t of_block = 0;
  for (const Parameter& parameter : table.parameters_of(1)) of_block += parameter.shape.num_elements();
  CHECK(table.num_parameters(ParamRole::frozen) == of_block);
  // Their gradients cost 2 for each.
  CHECK(model_flops_per_token(spec) - model_flops_per_token(spec, table) == 2.0 * static_cast<double>(of_block));
}

TEST_CASE("patterns that freeze nothing, everything or a part of one matrix are refused by name") {
  CHECK(refusal_of({"blocks.0.*", "block.0.*"}).starts_with("finetune.freeze: \"block.0.*\" matches no parameter"));
  CHECK(refusal_of({"embedding.token.wieght"}).find("(did you mean embedding.token.weight?)") != std::string::npos);
  CHECK(refusal_of({"head.weight"}).starts_with("finetune.freeze: \"head.weight\" matches no parameter"));  // tied
  CHECK(refusal_of({"*"}).starts_with("finetune.freeze: nothing is left to train"));
  const std::string fused = refusal_of({"*.attention.key.weight"});
  CHECK(fused.find("blocks.0.attention.key.weight is frozen and blocks.0.attention.query.weight is not") !=
        std::string::npos);
  CHECK(refusal_of({"blocks.1.ffn.gate.weight"}, true).find("blocks.1.ffn.up.weight is not") != std::string::npos);
}

TEST_CASE("phases let frozen parameters join, each after the first that names it") {
  ParamTable table = make_param_table(spec_of(false, true), InitConfig{});
  freeze_parameters(table, {.freeze = {"embedding.*", "blocks.0.*", "head.norm.bias"},
                            .unfreeze = {{.step = 4, .patterns = {"blocks.0.ffn*"}},
                                         {.step = 9, .patterns = {"blocks.?.*", "embedding.token.weight"}}}});
  CHECK(frozen_of(table) == std::set<std::string>{"embedding.position.weight", "head.norm.bias"});
  const auto joins = [&](const std::string& name) { return table.find(name)->joins_after; };
  CHECK(joins("blocks.0.ffn_norm.weight") == 4);
  CHECK(joins("blocks.0.ffn.up.weight") == 4);
  CHECK(joins("blocks.0.attention.query.weight") == 9);
  CHECK(joins("blocks.1.attention.query.weight") == 0);
  CHECK(joins("embedding.token.weight") == 9);
  CHECK(joins("head.weight") == 9);  // the tied copy
  // Where the backward of each step may stop.
  CHECK(table.first_trained_unit(0) == 2);
  CHECK(table.first_trained_unit(3) == 2);
  CHECK(table.first_trained_unit(4) == 1);
  CHECK(table.first_trained_unit(9) == 0);
  CHECK(table.first_trained_unit() == 0);
}

TEST_CASE("phases that bring nothing, or a part of one matrix, are refused by name") {
  const auto refusal = [](std::vector<std::string> freeze, std::vector<UnfreezeConfig> phases) {
    return message_of<UserError>([&] {
      ParamTable table = make_param_table(spec_of(false, true), InitConfig{});
      freeze_parameters(table, {.freeze = freeze, .unfreeze = phases});
    });
  };
  CHECK(
      refusal({"blocks.0.*"}, {{2, {"blok.0.*"}}}).starts_with("finetune.unfreeze: \"blok.0.*\" matches no parameter"));
  CHECK(refusal({"blocks.0.*"}, {{2, {"blocks.1.*"}}})
            .starts_with("finetune.unfreeze: all that \"blocks.1.*\" matches is trained before step 2 already"));
  CHECK(refusal({"blocks.0.*"}, {{2, {"blocks.0.*"}}, {5, {"blocks.0.ffn.*"}}})
            .find("all that \"blocks.0.ffn.*\" matches is trained before step 5") != std::string::npos);
  CHECK(refusal({"*"}, {{2, {"blocks.0.*"}}}).starts_with("finetune.freeze: nothing is left to train"));
  const std::string fused = refusal({"blocks.0.*"}, {{2, {"*.attention.key.weight"}}});
  CHECK(fused.find("finetune.unfreeze: blocks.0.attention.key.weight joins after 2 steps and "
                   "blocks.0.attention.query.weight is frozen") != std::string::npos);
}

// By hand: the products of one token with what is trained, and of attention.
TEST_CASE("no backward is counted through what comes before the first trained unit") {
  const ModelSpec spec = spec_of(true, false);
  ParamTable table = make_param_table(spec, InitConfig{});
  freeze_parameters(table, {.freeze = {"embedding.*", "blocks.0.*"}, .unfreeze = {{5, {"blocks.0.*"}}}});
  const auto elements = [&](int unit) {
    double count = 0;
    for (const Parameter& parameter : table.parameters_of(unit))
      count += static_cast<double>(parameter.shape.num_elements());
    return count;
  };
  REQUIRE(spec.layers == 2);
  const double attention = static_cast<double>(spec.heads * spec.head_size * spec.context);  // multiply-adds, x 2
  const double at_first = 2 * elements(1) + 2 * attention + 6 * elements(2) + 6 * attention + 6 * elements(3);
  CHECK(model_flops_per_token(spec, table, 0) == Near(at_first).epsilon(1e-12));
  CHECK(model_flops_per_token(spec, table, 4) == Near(at_first).epsilon(1e-12));
  CHECK(model_flops_per_token(spec, table, 5) == Near(model_flops_per_token(spec)).epsilon(1e-12));
  CHECK(model_flops_per_token(spec, table) == model_flops_per_token(spec, table, 5));
}

namespace {

double factor_of(const ParamTable& table, const std::string& name) {
  return table.find(name)->rate_factor;
}

ParamTable scaled(const FinetuneConfig& config, bool tied = true) {
  ParamTable table = make_param_table(spec_of(false, tied), InitConfig{});
  freeze_parameters(table, config);
  scale_learning_rates(table, config);
  return table;
}

}  // namespace

TEST_CASE("a learning rate has the factor of the last pattern that matches and one for each layer behind") {
  const ParamTable plain = scaled({});
  for (const Parameter& parameter : plain.parameters()) CHECK(parameter.rate_factor == 1.0);
  const ParamTable table =
      scaled({.learning_rates = {{"blocks.*", 0.5}, {"blocks.1.ffn.*", 3.0}}, .layer_decay = 0.25}, false);
  CHECK(factor_of(table, "head.weight") == 1.0);
  CHECK(factor_of(table, "blocks.1.attention.query.weight") == 0.5 * 0.25);
  CHECK(factor_of(table, "blocks.1.ffn.up.weight") == 3.0 * 0.25);
  CHECK(factor_of(table, "blocks.0.ffn.up.weight") == 0.5 * 0.0625);
  CHECK(factor_of(table, "embedding.token.weight") == 0.015625);
  // A tied copy goes with its owner.
  CHECK(factor_of(scaled({.layer_decay = 0.25}), "head.weight") == 0.015625);
}

namespace {

// 0: it does not decay.
double decay_of(const ParamTable& table, const std::string& name) {
  const Parameter& parameter = *table.find(name);
  return parameter.decays ? parameter.decay_factor : 0.0;
}

ParamTable with_decays(const FinetuneConfig& config, bool tied = true) {
  ParamTable table = make_param_table(spec_of(false, tied), InitConfig{});
  freeze_parameters(table, config);
  scale_weight_decays(table, config);
  return table;
}

}  // namespace

TEST_CASE("a weight decay has the factor of the last pattern that concerns the parameter") {
  const ParamTable plain = with_decays({});
  for (const Parameter& parameter : plain.parameters()) {
    CHECK(parameter.decays == (parameter.shape.num_dims() == 2));
    CHECK(parameter.decay_factor == 1.0);
  }
  // Of a pattern that matches matrices too, biases and norms have nothing but what they have already.
  const ParamTable table = with_decays(
      {.weight_decays = {{"*", 0.5}, {"*.bias", 2.0}, {"blocks.1.*", 3.0}, {"blocks.1.ffn.up.*", 0.0}}}, false);
  CHECK(decay_of(table, "head.weight") == 0.5);
  CHECK(decay_of(table, "head.norm.weight") == 0.0);
  CHECK(decay_of(table, "head.norm.bias") == 2.0);
  CHECK(decay_of(table, "blocks.0.attention.query.weight") == 0.5);
  CHECK(decay_of(table, "blocks.1.attention.query.weight") == 3.0);
  CHECK(decay_of(table, "blocks.1.ffn_norm.weight") == 0.0);
  CHECK(decay_of(table, "blocks.1.ffn_norm.bias") == 3.0);
  CHECK(decay_of(table, "blocks.1.ffn.up.weight") == 0.0);
  CHECK(decay_of(table, "blocks.1.ffn.up.bias") == 0.0);
  // What does not decay, said again, stays so.
  const ParamTable usual = with_decays({.weight_decays = {{"*.bias", 0.0}, {"*_norm.*", 0.0}, {"blocks.*", 0.5}}});
  for (const Parameter& parameter : usual.parameters())
    if (parameter.shape.num_dims() == 1) CHECK_FALSE(parameter.decays);
  CHECK(decay_of(usual, "blocks.0.ffn.down.weight") == 0.5);
  // A tied copy goes with its owner.
  const ParamTable tied = with_decays({.weight_decays = {{"embedding.token.weight", 0.0}}});
  CHECK_FALSE(tied.find("head.weight")->decays);
  CHECK_FALSE(tied.find("embedding.token.weight")->decays);
}

TEST_CASE("weight decays of nothing, of frozen parameters and of what does not decay are refused by name") {
  const auto refusal = [](const FinetuneConfig& config) { return message_of<UserError>([&] { with_decays(config); }); };
  // Whoever names a tied head means no norm.
  CHECK(contains(message_of<UserError>([&] {
                   with_decays({.weight_decays = {{"head.*", 0.5}}});
                 }),
                 "of what \"head.*\" matches the matrices are frozen or another's (a tied head is the embedding)"));
  CHECK(refusal({.weight_decays = {{"block.0.*", 0.5}}})
            .starts_with("finetune.weight_decays: \"block.0.*\" matches no parameter"));
  CHECK(refusal({.freeze = {"blocks.0.*"}, .weight_decays = {{"blocks.0.*", 0.5}}})
            .starts_with("finetune.weight_decays: all that \"blocks.0.*\" matches is frozen (finetune.freeze)"));
  const FinetuneConfig matrices_frozen{.freeze = {"blocks.0.*.weight"}, .weight_decays = {{"blocks.0.*", 0.5}}};
  CHECK(refusal(matrices_frozen)
            .starts_with("finetune.weight_decays: of what \"blocks.0.*\" matches the matrices are frozen"));
  CHECK_NOTHROW(
      with_decays({.freeze = {"blocks.0.*.weight"}, .weight_decays = {{"*.bias", 1.0}, {"blocks.0.*", 0.5}}}));
}

TEST_CASE("factors for nothing and for frozen parameters alone are refused by name") {
  CHECK(message_of<UserError>([] {
          scaled({.learning_rates = {{"block.0.*", 0.5}}});
        }).starts_with("finetune.learning_rates: \"block.0.*\" matches no parameter"));
  CHECK(message_of<UserError>([] {
          scaled({.freeze = {"blocks.0.*"}, .learning_rates = {{"blocks.0.*", 0.5}}});
        }).starts_with("finetune.learning_rates: all that \"blocks.0.*\" matches is frozen (finetune.freeze)"));
  CHECK_NOTHROW(scaled({.freeze = {"blocks.0.*"}, .learning_rates = {{"blocks.*", 0.5}}}));
}
