// Whether all ranks of a run have opened the same data: on every host its paths may lead to something else, to an older
// corpus, a copy that was cut short, a mount that is missing. Ranks that train on other samples than the rest are told
// by nothing else, and what they make of the run is worthless.
//
// Compared is what opening the data has found out already (SourceContent), so that it costs one word over the
// rendezvous store. Of token files beyond 64 MiB that is a checksum of samples (token_file.h), unless data.verify is
// all. By the same word the first rank of a host tells the host's other ranks what it has found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/numbers/strong.h"
#include "data/dataset.h"
#include "data/tasks/choice_task.h"
#include "parallel/mesh/mesh.h"
#include "train/start/start_up.h"

namespace scaletrain {

// What one rank has.
struct DataClaim {
  std::string host;
  std::uint64_t tokenizer = 0;  // Tokenizer::hash()
  std::vector<SourceContent> sources;
};

// Of this host.
DataClaim make_data_claim(std::uint64_t tokenizer, std::vector<SourceContent> sources);

// The weights that a run starts from, below model.init.from or finetune.lora.from, as one more source.
SourceContent content_of_weights(const std::string& key, const std::string& folder);

// A task that the run is evaluated on, the same.
SourceContent content_of_task(const std::string& key, const std::string& path, const ChoiceTask& task);

// For the store. Of many files the first hundred of each source are named, of many sources 4 MiB of files and caches.
std::string claim_text(const DataClaim& claim);
// Of text that claim_text() has made; InputError if it is other text, or says more than that ever does.
DataClaim parse_claim(const std::string& text);

// What `here` has otherwise than `there`, in a few words: source, file, size. Empty: the same.
std::string data_differences(const DataClaim& here, const DataClaim& there);

// Every rank calls it once its data is open. InputError on each that has not what rank 0 has; PeerError if rank 0 has
// failed.
void agree_on_data(StartUp& start_up, Rank rank, const DataClaim& claim);

}  // namespace scaletrain
