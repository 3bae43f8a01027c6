#include "infer/choose_sample.h"

#include "infer_helpers.h"
#include "support/near.h"

using namespace scaletrain;

TEST_CASE("the best of some samples has the largest mean log-probability, whatever its length") {
  const auto sample = [](std::vector<double> log_probabilities) {
    GeneratedSample one;
    one.log_probabilities = std::move(log_probabilities);
    return one;
  };
  const std::vector<GeneratedSample> samples = {sample({-1.0, -1.0}), sample({-0.5, -0.6, -0.7, -0.6}), sample({-0.6}),
                                                sample({-0.1, -3.0})};
  CHECK(mean_log_probability(samples[3]) == Near(-1.55));
  CHECK(likeliest_sample(samples) == 1);  // its sum is the smallest but one; and it comes before its equal
  CHECK(likeliest_sample(std::span(samples).subspan(2)) == 0);
  CHECK(likeliest_sample(std::span(samples).first(1)) == 0);
}

TEST_CASE("an answer is the first group of the last match, in any line") {
  const AnswerPattern pattern("answer is *(-?[0-9,.]*[0-9])");
  CHECK(pattern.find("So the answer is 4, no,\nthe answer is  -1,024.5.\nGood") == "-1,024.5");
  CHECK(pattern.find("the answer is 1 or the answer is 2") == "2");
  CHECK_FALSE(pattern.find("the answer\nis 3"));
  CHECK_FALSE(pattern.find(""));
  CHECK(pattern.find("the answer is 1. " + std::string(5000, 'x') + " the answer is 42") == "42");
  CHECK(AnswerPattern("(?:a|(b))(c)").find("ac bc") == "b");
  CHECK(AnswerPattern("=([^;]*)").find("x =  y z ;") == "y z");
  for (const char* wrong : {"answer", "(", "(a)\\1", "[z-a](x)"})
    CHECK(contains(message_of<UserError>([&] { AnswerPattern{wrong}; }), wrong[0] == 'a' ? "no group" : "regular"));
}

TEST_CASE("a pattern that would try every way, on a long text, costs neither stack nor much time") {
  const std::string text(200000, 'a');
  CHECK_FALSE(AnswerPattern("(a+)+b").find(text));
  CHECK(AnswerPattern("(.*)").find(text)->size() <= 4096);
}

TEST_CASE("the majority wins, of equals the first; who has no answer has no vote") {
  using Answers = std::vector<std::optional<std::string>>;
  const Vote clear = majority(Answers{"1", "2", std::nullopt, "2"});
  CHECK(clear.answer == "2");
  CHECK(clear.votes == 2);
  CHECK(clear.cast == 3);
  CHECK(clear.first == 1);
  const Vote tie = majority(Answers{std::nullopt, "b", "a", "a", "b"});
  CHECK(tie.answer == "b");
  CHECK(tie.first == 1);
  const Vote none = majority(Answers{std::nullopt, std::nullopt});
  CHECK_FALSE(none.answer);
  CHECK(none.cast == 0);
}
