// A folder of checkpoints of one small model.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/catalog.h"
#include "checkpoint_fixture.h"

namespace scaletrain {

struct CatalogRun {
  explicit CatalogRun(const ModelConfig& model = tiny_gpt2_config()) : store(model) {}

  TempFolder folder;
  StoreFixture store;
  std::vector<std::string> reports;
  std::set<std::string> written;  // save ids

  std::filesystem::path save(std::int64_t step, std::int64_t generation = 0) {
    store.fill(static_cast<std::uint64_t>(step));
    const SaveResult result = save_checkpoint(store.store, save_request(folder.path(), step, generation));
    written.insert(result.save_id);
    return result.path;
  }
  std::function<void(const std::string&)> report() {
    return [this](const std::string& text) { reports.push_back(text); };
  }
  // As a process that has written nothing of it.
  void prune(const RetentionPolicy& policy) {
    std::set<std::string> known;
    prune_checkpoints(folder.path(), policy, known, report());
  }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> out;
    for (const CatalogEntry& entry : list_checkpoints(folder.path())) {
      if (entry.problem.empty()) out.push_back(entry.step);
    }
    return out;
  }
  void damage(const std::filesystem::path& checkpoint) const {
    flip_byte(checkpoint / "model-00000.safetensors", 5000);
  }
};

}  // namespace scaletrain
