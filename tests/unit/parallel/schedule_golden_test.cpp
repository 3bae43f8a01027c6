// Printed schedules against reviewed files. SCALETRAIN_UPDATE_GOLDEN=1 in the environment rewrites them: a decision to
// review.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "parallel/schedule/schedule.h"

using namespace scaletrain;

namespace {

void compare(const std::string& name, const Schedule& schedule) {
  const std::string path = std::string(SCALETRAIN_GOLDEN_FOLDER) + "/schedules/" + name;
  const std::string found = to_text(schedule);
  if (std::getenv("SCALETRAIN_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << found;
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path);
  std::ostringstream expected;
  expected << file.rdbuf();
  CHECK_MESSAGE(found == expected.str(), name);
}

}  // namespace

TEST_CASE("printed schedules are the reviewed ones") {
  compare("gpipe-4x6.txt", make_schedule(ScheduleKind::gpipe, 4, 6, 1));
  compare("1f1b-4x8.txt", make_schedule(ScheduleKind::one_f_one_b, 4, 8, 1));
  compare("interleaved-2x4x2.txt", make_schedule(ScheduleKind::interleaved, 2, 4, 2));
  compare("zb-h1-4x8.txt", make_schedule(ScheduleKind::zb_h1, 4, 8, 1));
}
