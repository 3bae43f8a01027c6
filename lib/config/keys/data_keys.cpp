// The keys of the section data, and of the sources and validation sets in it.
#include "config/keys/key_rows.h"

namespace scaletrain {

using namespace key_rows;  // NOLINT(google-build-using-namespace)

namespace {

// What a source and a validation set have in common.
template <class Record>
void add_source_rows(KeyTable<Record>& table, ResumeRule rule) {
  table.push_back(row<Record>({"type", "", "Kind of the files; auto: by their names and contents.", rule},
                              EnumCodec<SourceKind>(), FIELD(type)));
  table.push_back(row<Record>(
      {"records", "",
       "What a line of JSONL holds: text, messages of a conversation, or a prompt and its completion, which the "
       "tokenizer's eos ends.",
       rule},
      EnumCodec<RecordKind>(), FIELD(records)));
  table.push_back(row<Record>({"field", "", "The key (jsonl) or column (parquet) that holds the document.", rule},
                              TextCodec(), FIELD(field)));
  table.push_back(row<Record>(
      {"separator", "", "A line that ends a document (text), \"\" an empty one; null: a file is one.", rule},
      optional(TextCodec{TextRule::may_be_empty}), FIELD(separator)));
}

}  // namespace

void key_rows::add_data(KeyTable<Config>& table) {
  table.push_back(top({"data.tokenizer.type", "", "How text becomes tokens; ids: token files bring their own.", never},
                      EnumCodec<TokenizerKind>(), FIELD(data.tokenizer.type)));
  table.push_back(top({"data.tokenizer.path", "",
                       "The tokenizer's file or folder: tokenizer.json, or vocab.json with merges.txt (bpe); "
                       "tokenizer.model (sentencepiece)."},
                      optional(path_text()), FIELD(data.tokenizer.path)));
  table.push_back(top(
      {"data.tokenizer.end_of_document", "",
       "The token that ends a document or a completion (ids; bpe, sentencepiece: where the tokenizer does not say, or "
       "says another).",
       never},
      optional(at_least(0, kMaxVocab)), FIELD(data.tokenizer.end_of_document)));
  table.push_back(
      top({"data.documents.attention", "",
           "What a token attends to: all of the sample before it (across), or of its document, whose positions then "
           "begin at 0 (within, the default of records that are no text); instructions: within those, across text (the "
           "default of both).",
           with_notice},
          EnumCodec<DocumentAttention>(), FIELD(data.documents.attention)));
  table.push_back(top({"data.documents.loss_across", "",
                       "Whether a document's first token is predicted from the document before it.", with_notice},
                      BoolCodec(), FIELD(data.documents.loss_across)));
  table.push_back(
      top({"data.instructions.loss", "",
           "Which tokens of messages, prompts and completions are predicted: the answers' or all.", with_notice},
          EnumCodec<InstructionLoss>(), FIELD(data.instructions.loss)));
  table.push_back(
      top({"data.instructions.chat_template", "",
           "How messages are written: llama3, llama3-first, qwen3 or chatml; null: by the tokenizer's own template.",
           with_notice},
          optional(TextCodec()), FIELD(data.instructions.chat_template)));
  table.push_back(list_row({"data.train", "", "The mix: text, JSONL, Parquet or token files.", with_notice, "required"},
                           "list of sources", source_table(), FIELD(data.train)));
  table.push_back(list_row({"data.validation", "", "Data sets to evaluate on.", freely, "[]"},
                           "list of validation sets", validation_table(), FIELD(data.validation)));
  table.push_back(top({"data.cache", "", "Folder for tokenised text; null: SCALETRAIN_CACHE or ~/.cache/scaletrain."},
                      optional(path_text()), FIELD(data.cache)));
  table.push_back(top({"data.verify", "", "What a start reads in full to verify it: files that have changed, or all."},
                      EnumCodec<DataCheck>(), FIELD(data.verify)));
  table.push_back(top({"data.on_bad_record", "",
                       "What a line of JSONL or row of Parquet without a document does: fail stops the start, skip "
                       "counts and tells it.",
                       with_notice},
                      EnumCodec<BadRecordPolicy>(), FIELD(data.on_bad_record)));
}

const KeyTable<SourceConfig>& source_table() {
  static const KeyTable<SourceConfig> table = [] {
    KeyTable<SourceConfig> out;
    out.push_back(
        row<SourceConfig>({"path", "", "A file, a folder, or a pattern (web/**/*.jsonl.zst).", with_notice, "required"},
                          path_text(), FIELD(path)));
    out.push_back(row<SourceConfig>({"weight", "", "Share of the mix; weights need not sum to 1.", with_notice},
                                    positive(), FIELD(weight)));
    out.push_back(
        row<SourceConfig>({"epochs", "", "Most passes over this source; the mix goes on without it.", with_notice},
                          optional(positive()), FIELD(epochs)));
    add_source_rows(out, with_notice);
    out.push_back(row<SourceConfig>(
        {"name", "", "By which phases[].weights call it; null: by its place, such as 0.", with_notice},
        optional(TextCodec{TextRule::plain_name}), FIELD(name)));
    out.push_back(section_row<HoldOutConfig, SourceConfig>(
        {"split", "", "Holds documents out of text as a validation set, the same ones always; null: none.",
         with_notice},
        hold_out_table(), FIELD(split)));
    return out;
  }();
  return table;
}

const KeyTable<HoldOutConfig>& hold_out_table() {
  static const KeyTable<HoldOutConfig> table = [] {
    KeyTable<HoldOutConfig> out;
    out.push_back(row<HoldOutConfig>(
        {"validation", "", "Share of the documents that is held out, such as 1%.", with_notice, "required"},
        ShareCodec(), FIELD(validation)));
    out.push_back(row<HoldOutConfig>(
        {"name", "", "Name of the validation set; its metric is validation/NAME/loss.", with_notice, "required"},
        TextCodec{TextRule::plain_name}, FIELD(name)));
    return out;
  }();
  return table;
}

const KeyTable<ValidationConfig>& validation_table() {
  static const KeyTable<ValidationConfig> table = [] {
    KeyTable<ValidationConfig> out;
    out.push_back(
        row<ValidationConfig>({"name", "", "Name of the set; its metric is validation/NAME/loss.", freely, "required"},
                              TextCodec{TextRule::plain_name}, FIELD(name)));
    out.push_back(
        row<ValidationConfig>({"path", "", "A file, a folder, or a pattern (web/**/*.jsonl.zst).", freely, "required"},
                              path_text(), FIELD(path)));
    add_source_rows(out, freely);
    return out;
  }();
  return table;
}

}  // namespace scaletrain
