// A backend that hands everything to another one: for those that only look at what is launched.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "backend/backend.h"

namespace scaletrain {

class ForwardingBackend : public Backend {
 public:
  DType compute_type() const override { return inner_->compute_type(); }
  std::string description() const override { return inner_->description(); }
  int num_threads() const override { return inner_->num_threads(); }
  std::unique_ptr<Stream> make_stream() override { return inner_->make_stream(); }
  void prepare(Stream& stream) override { inner_->prepare(stream); }
  Space space() const override { return inner_->space(); }
  std::int64_t row_alignment() const override { return inner_->row_alignment(); }
  AttentionWorkspace attention_workspace() const override { return inner_->attention_workspace(); }
  std::optional<DeviceFacts> device() const override { return inner_->device(); }
  std::uint64_t device_memory_in_use() const override { return inner_->device_memory_in_use(); }
  Buffer allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  Buffer allocate_pinned(std::size_t bytes) override { return inner_->allocate_pinned(bytes); }
  std::size_t workspace_bytes() const override { return inner_->workspace_bytes(); }
  std::size_t packed_bytes(const Shape& weight) const override { return inner_->packed_bytes(weight); }
  std::unique_ptr<PackedWeight> pack(Stream& stream, ConstView values, Region memory) override {
    return inner_->pack(stream, values, memory);
  }

 protected:
  explicit ForwardingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}
  Backend& inner() { return *inner_; }

 private:
  void launch(Stream& stream, const Operation& op) override { inner_->run(stream, op); }
  void transfer(Stream& stream, const ConstView& from, const View& to) override { inner_->copy(stream, from, to); }

  std::unique_ptr<Backend> inner_;
};

}  // namespace scaletrain
