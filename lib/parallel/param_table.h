// The single truth about persistent tensors. One parameter per tensor that a checkpoint stores: gradient reduction, the
// global norm, initialisation, checkpoint boxes, import and export, memory accounting and parameter counts all derive
// from it.
//
// Parameters are grouped by unit: the piece of the model that is acquired and released together (the embedding, each
// block, the head). Names are global ("blocks.17.attention.query.weight") and unfused; parameters that a kernel reads
// as one matrix follow each other and name the same `fused` group, so that the flat layout puts them side by side.
//
// Size: one parameter per tensor of the whole model (a few thousand for the largest); never multiplied by the world.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace scaletrain {

enum class ParamRole {
  trained,  // master weights in f32, a gradient and optimizer states
  frozen,   // its own dtype, no gradient
};

// How a tensor is divided among the ranks of the tensor axis.
struct Split {
  enum class Kind {
    replicated,  // every rank holds all of it
    cut,         // dim `dim` in equal pieces, rank r holds piece r (the last ones may be short or empty: vocabulary)
    grouped,     // as cut while `pieces` >= ranks; fewer pieces than ranks: each is held by ranks/pieces neighbours
  };
  Kind kind = Kind::replicated;
  int dim = 0;
  // The number of indivisible pieces that the dim consists of (heads). For cut, 0: every index is a piece of its own.
  // For grouped, one of pieces and ranks must divide the other.
  std::int64_t pieces = 0;
  bool operator==(const Split&) const = default;
};

// The range of a tensor that one rank holds: [first, first + extent) in each dim.
struct Box {
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> extent;
  std::int64_t num_elements() const;
  bool operator==(const Box&) const = default;
};

// Initial values: normal(0, deviation), uniform(-deviation, deviation), ones or zeros.
struct InitialValues {
  enum class Kind { zeros, ones, normal, uniform };
  Kind kind = Kind::zeros;
  double deviation = 0.0;
};

struct Parameter {
  std::string name;
  std::string hugging_face_name;         // the name in the family's safetensors; empty: not exported (a tied copy)
  bool hugging_face_transposed = false;  // GPT-2 stores linear weights [in, out]
  ParamRole role = ParamRole::trained;
  Shape shape;               // global
  DType dtype = DType::f32;  // as stored
  Split split;
  bool decays = false;      // weight decay applies: to matrices, unless finetune says otherwise
  double decay_factor = 1;  // on the weight decay
  double rate_factor = 1;   // on the learning rate
  // Of a trained parameter: updates of the model before it takes part in them. Until then it keeps its value, nobody
  // computes its gradient, and its optimizer state is zero.
  std::int64_t joins_after = 0;
  // Of a trained parameter: by its place among them, the optimizer state that it has no use of and no memory for; -1:
  // it has all.
  int absent_state = -1;
  bool has_state(int state) const { return role == ParamRole::trained && state != absent_state; }
  // Of a trained matrix: in place of the state that is absent it has a number for each of its rows and for each of its
  // columns, of the whole tensor, which every rank that holds a part of it holds.
  bool has_factors = false;
  std::int64_t num_factors() const { return has_factors ? shape[0] + shape[1] : 0; }
  // Of what optimizer states of it are in 8 bits (ParamTable::hold_states_in_blocks): consecutive elements of a row
  // that share a scale; 0: its states are not.
  std::int64_t state_block = 0;
  InitialValues init;
  bool is_hidden_map = false;  // a linear map between features of a block: not an embedding, not the head
  bool lookup_only = false;    // read row by row (an embedding table): needs no compute form
  // With sequence shards each tensor rank computes this replicated parameter's gradient from its own rows of the batch
  // only (norms, biases of row-parallel maps): the ranks' gradients are summed.
  bool sequence_partial = false;
  // The same with and without sequence shards: each tensor rank computes this replicated parameter's gradient from its
  // own heads only.
  bool tensor_partial = false;
  // Of the base model that adapters are trained for: frozen, loaded from where the base is at every start, and held by
  // no checkpoint, which names the base instead.
  bool in_base = false;
  bool is_adapter = false;  // of an adapter: its Hugging Face name is peft's
  std::string fused;        // parameters of one unit with the same non-empty text form one matrix, stacked along dim 0
  int unit = 0;             // index into units()
  std::optional<std::string>
      tied_to;  // this parameter is another stage's copy of that parameter's tensor: stored and counted once
};

// A piece of the model that is acquired together. Parameters [first_parameter, first_parameter + num_parameters).
struct ParamUnit {
  std::string name;  // "embedding", "blocks.0", "head"
  int first_parameter = 0;
  int num_parameters = 0;
};

class ParamTable {
 public:
  // Appends a unit; parameters added next belong to it.
  void begin_unit(std::string name);
  // The name must be new; parameters of a fused group must follow each other; the owner of a tied parameter must be
  // there already.
  void add(Parameter parameter);

  // Makes the chosen parameters frozen ones. Of those that share a tensor, or are one fused matrix, all are chosen or
  // none.
  void freeze(const std::function<bool(const Parameter&)>& is_chosen);
  // The type that frozen parameters are held and stored in. They have no other form.
  void hold_frozen_in(DType dtype);
  // Gives each trained parameter the number of updates before it joins, by the same rule.
  void join_after(const std::function<std::int64_t(const Parameter&)>& updates_of);
  // Gives each parameter the factor on its learning rate; those that share a tensor get the same.
  void scale_learning_rates(const std::function<double(const Parameter&)>& factor_of);
  // The same of the weight decay. Whether a parameter decays follows from it: with 0 it does not, with more it does.
  void scale_weight_decays(const std::function<double(const Parameter&)>& factor_of);

  // Gives trained matrices the blocks in which an optimizer holds its states in 8 bits. They follow from the global
  // shape alone, so that every layout has the same: the largest power of two, at most 256, of which rows consist, or,
  // where ranks divide rows among them (Split::dim 1), eighths of rows. What has none of 16 or more, and vectors
  // (norms, biases, which move a model most and weigh nothing), have none.
  void hold_states_in_blocks();
  // A parameter whose blocks a tensor degree would cut; null: there is none, as of any degree up to 8 that divides 8.
  const Parameter* cut_by(std::int64_t tensor_degree) const;

  std::span<const Parameter> parameters() const { return parameters_; }
  std::span<const ParamUnit> units() const { return units_; }
  std::span<const Parameter> parameters_of(int unit) const;
  const Parameter* find(std::string_view name) const;  // null if there is none
  int index_of(std::string_view name) const;           // -1 if there is none

  // Gives each trained parameter the state that it has no use of, and, where they are to stand for it, factors in its
  // place: it must be a matrix then. Those of a fused matrix get the same.
  void leave_out_states(const std::function<int(const Parameter&)>& absent_of, bool with_factors = false);

  // The first unit that has a parameter of those trained after so many updates, which a backward must reach: no
  // gradient is needed of what comes before it. Without one the number of units.
  int first_trained_unit(std::int64_t updates) const;
  // Of all that will ever be trained.
  int first_trained_unit() const { return first_trained_unit(std::numeric_limits<std::int64_t>::max()); }

  // Elements of every stored tensor, tied copies once; of those of one role.
  std::int64_t num_parameters() const;
  std::int64_t num_parameters(ParamRole role) const;
  // The part of a parameter that a tensor rank holds.
  static Box box_of(const Parameter& parameter, std::int64_t tensor_degree, std::int64_t tensor_rank);
  // How many tensor ranks hold the same part, and whether this rank is the first of them: the one that counts it where
  // each element must count once (gradient norm, save boxes).
  static std::int64_t replication_degree(const Parameter& parameter, std::int64_t tensor_degree);
  static bool is_first_replica(const Parameter& parameter, std::int64_t tensor_degree, std::int64_t tensor_rank);
  // The gradient of a parameter is summed over the data axis always; over the tensor axis where every rank of it
  // computes only a part: parameters that are sequence_partial or tensor_partial, and grouped ones over their
  // replication group.

 private:
  std::vector<Parameter> parameters_;
  std::vector<ParamUnit> units_;
  std::vector<std::pair<std::string, int>> by_name_;  // sorted
};

}  // namespace scaletrain
