#include <array>
#include <utility>

#include "base/error.h"
#include "config/keys/key_codecs.h"
#include "config/keys/keys.h"

namespace scaletrain {

namespace {
template <class E, std::size_t N>
using Names = std::array<std::pair<E, std::string_view>, N>;

constexpr Names<DeviceKind, 3> kDevices = {
    {{DeviceKind::automatic, "auto"}, {DeviceKind::cpu, "cpu"}, {DeviceKind::cuda, "cuda"}}};
constexpr Names<NormKind, 2> kNorms = {{{NormKind::layernorm, "layernorm"}, {NormKind::rmsnorm, "rmsnorm"}}};
constexpr Names<ActivationKind, 4> kActivations = {{{ActivationKind::gelu, "gelu"},
                                                    {ActivationKind::gelu_tanh, "gelu_tanh"},
                                                    {ActivationKind::swiglu, "swiglu"},
                                                    {ActivationKind::geglu, "geglu"}}};
constexpr Names<PositionKind, 2> kPositions = {{{PositionKind::learned, "learned"}, {PositionKind::rope, "rope"}}};
constexpr Names<GrowthOrder, 3> kGrowthOrders = {
    {{GrowthOrder::none, "none"}, {GrowthOrder::stack, "stack"}, {GrowthOrder::interleave, "interleave"}}};
constexpr Names<RopeScalingKind, 3> kRopeScalings = {
    {{RopeScalingKind::none, "none"}, {RopeScalingKind::linear, "linear"}, {RopeScalingKind::llama3, "llama3"}}};
constexpr Names<InitKind, 3> kInits = {
    {{InitKind::normal, "normal"}, {InitKind::xavier, "xavier"}, {InitKind::he, "he"}}};
constexpr Names<TokenizerKind, 4> kTokenizers = {{{TokenizerKind::bytes, "bytes"},
                                                  {TokenizerKind::ids, "ids"},
                                                  {TokenizerKind::bpe, "bpe"},
                                                  {TokenizerKind::sentencepiece, "sentencepiece"}}};
constexpr Names<DocumentAttention, 3> kAttentions = {{{DocumentAttention::across, "across"},
                                                      {DocumentAttention::within, "within"},
                                                      {DocumentAttention::instructions, "instructions"}}};
constexpr Names<SourceKind, 5> kSources = {{{SourceKind::automatic, "auto"},
                                            {SourceKind::text, "text"},
                                            {SourceKind::jsonl, "jsonl"},
                                            {SourceKind::parquet, "parquet"},
                                            {SourceKind::tokens, "tokens"}}};
constexpr Names<RecordKind, 3> kRecords = {{{RecordKind::text, "text"},
                                            {RecordKind::messages, "messages"},
                                            {RecordKind::prompt_completion, "prompt_completion"}}};
constexpr Names<InstructionLoss, 2> kInstructionLosses = {
    {{InstructionLoss::answers, "answers"}, {InstructionLoss::all, "all"}}};
constexpr Names<DataCheck, 2> kDataChecks = {{{DataCheck::changed, "changed"}, {DataCheck::all, "all"}}};
constexpr Names<BadRecordPolicy, 2> kBadRecordPolicies = {
    {{BadRecordPolicy::fail, "fail"}, {BadRecordPolicy::skip, "skip"}}};
constexpr Names<OptimizerKind, 8> kOptimizers = {{{OptimizerKind::adamw, "adamw"},
                                                  {OptimizerKind::sgd, "sgd"},
                                                  {OptimizerKind::lion, "lion"},
                                                  {OptimizerKind::lamb, "lamb"},
                                                  {OptimizerKind::lars, "lars"},
                                                  {OptimizerKind::ademamix, "ademamix"},
                                                  {OptimizerKind::muon, "muon"},
                                                  {OptimizerKind::adafactor, "adafactor"}}};
constexpr Names<StepScale, 2> kStepScales = {
    {{StepScale::original, "original"}, {StepScale::match_rms_adamw, "match_rms_adamw"}}};
constexpr Names<LrScheduleKind, 6> kLrSchedules = {{{LrScheduleKind::cosine, "cosine"},
                                                    {LrScheduleKind::linear, "linear"},
                                                    {LrScheduleKind::constant, "constant"},
                                                    {LrScheduleKind::inverse_sqrt, "inverse_sqrt"},
                                                    {LrScheduleKind::wsd, "wsd"},
                                                    {LrScheduleKind::cosine_restarts, "cosine_restarts"}}};
constexpr Names<DecayShape, 3> kDecayShapes = {
    {{DecayShape::linear, "linear"}, {DecayShape::cosine, "cosine"}, {DecayShape::one_minus_sqrt, "1-sqrt"}}};
constexpr Names<BatchScaling, 2> kBatchScalings = {{{BatchScaling::linear, "linear"}, {BatchScaling::sqrt, "sqrt"}}};
constexpr Names<RecomputeKind, 3> kRecomputes = {
    {{RecomputeKind::none, "none"}, {RecomputeKind::selective, "selective"}, {RecomputeKind::full, "full"}}};
constexpr Names<ZeroReduceKind, 2> kZeroReductions = {{{ZeroReduceKind::use, "use"}, {ZeroReduceKind::step, "step"}}};
constexpr Names<OptimizerStateType, 2> kStateTypes = {
    {{OptimizerStateType::fp32, "fp32"}, {OptimizerStateType::int8, "int8"}}};
constexpr Names<OffloadKind, 2> kOffloads = {{{OffloadKind::none, "none"}, {OffloadKind::host, "host"}}};
constexpr Names<SpikeAction, 3> kSpikeActions = {
    {{SpikeAction::warn, "warn"}, {SpikeAction::skip, "skip"}, {SpikeAction::rollback, "rollback"}}};
constexpr Names<ScheduleKind, 4> kSchedules = {{{ScheduleKind::gpipe, "gpipe"},
                                                {ScheduleKind::one_f_one_b, "1f1b"},
                                                {ScheduleKind::interleaved, "interleaved"},
                                                {ScheduleKind::zb_h1, "zb-h1"}}};
constexpr Names<RankTransport, 4> kTransports = {{{RankTransport::automatic, "auto"},
                                                  {RankTransport::host, "host"},
                                                  {RankTransport::tcp, "tcp"},
                                                  {RankTransport::nccl, "nccl"}}};
constexpr Names<Precision, 4> kPrecisions = {
    {{Precision::fp32, "fp32"}, {Precision::tf32, "tf32"}, {Precision::bf16, "bf16"}, {Precision::fp16, "fp16"}}};

template <class E>
std::string_view name_of(E value) {
  for (const auto& entry : enum_names<E>()) {
    if (entry.first == value) return entry.second;
  }
  SCALETRAIN_CHECK(false && "an enumerator without a name");
  return {};
}
}  // namespace

// One line per enum ties its names to both directions.
#define SCALETRAIN_ENUM_TEXT(Type, names) \
  template <>                             \
  EnumNames<Type> enum_names() {          \
    return names;                         \
  }                                       \
  std::string_view to_text(Type value) {  \
    return name_of(value);                \
  }

SCALETRAIN_ENUM_TEXT(DeviceKind, kDevices)
SCALETRAIN_ENUM_TEXT(NormKind, kNorms)
SCALETRAIN_ENUM_TEXT(ActivationKind, kActivations)
SCALETRAIN_ENUM_TEXT(PositionKind, kPositions)
SCALETRAIN_ENUM_TEXT(GrowthOrder, kGrowthOrders)
SCALETRAIN_ENUM_TEXT(RopeScalingKind, kRopeScalings)
SCALETRAIN_ENUM_TEXT(InitKind, kInits)
SCALETRAIN_ENUM_TEXT(TokenizerKind, kTokenizers)
SCALETRAIN_ENUM_TEXT(DocumentAttention, kAttentions)
SCALETRAIN_ENUM_TEXT(SourceKind, kSources)
SCALETRAIN_ENUM_TEXT(RecordKind, kRecords)
SCALETRAIN_ENUM_TEXT(InstructionLoss, kInstructionLosses)
SCALETRAIN_ENUM_TEXT(DataCheck, kDataChecks)
SCALETRAIN_ENUM_TEXT(BadRecordPolicy, kBadRecordPolicies)
SCALETRAIN_ENUM_TEXT(OptimizerKind, kOptimizers)
SCALETRAIN_ENUM_TEXT(StepScale, kStepScales)
SCALETRAIN_ENUM_TEXT(LrScheduleKind, kLrSchedules)
SCALETRAIN_ENUM_TEXT(DecayShape, kDecayShapes)
SCALETRAIN_ENUM_TEXT(BatchScaling, kBatchScalings)
SCALETRAIN_ENUM_TEXT(RecomputeKind, kRecomputes)
SCALETRAIN_ENUM_TEXT(OffloadKind, kOffloads)
SCALETRAIN_ENUM_TEXT(OptimizerStateType, kStateTypes)
SCALETRAIN_ENUM_TEXT(ZeroReduceKind, kZeroReductions)
SCALETRAIN_ENUM_TEXT(SpikeAction, kSpikeActions)
SCALETRAIN_ENUM_TEXT(ScheduleKind, kSchedules)
SCALETRAIN_ENUM_TEXT(RankTransport, kTransports)
SCALETRAIN_ENUM_TEXT(Precision, kPrecisions)
#undef SCALETRAIN_ENUM_TEXT

}  // namespace scaletrain
