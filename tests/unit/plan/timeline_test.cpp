// Charts of schedules, against ones drawn by hand.
#include "plan/describe/timeline.h"

#include "plan_helpers.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

TimelineChart chart(ScheduleKind kind, std::int64_t stages, std::int64_t micro_batches, std::size_t width,
                    const std::vector<WorkCosts>& costs = {}) {
  return draw_timeline(make_timetable(make_schedule(kind, stages, micro_batches, 1), {.of_chunks = costs}), 1, width,
                       16);
}

}  // namespace

TEST_CASE("a chart that fits names every micro-batch") {
  // 1F1B of two stages and three micro-batches, a backward as long as two forwards.
  const TimelineChart drawn = chart(ScheduleKind::one_f_one_b, 2, 3, 80);
  CHECK(drawn.is_named);
  CHECK(drawn.rows ==
        "stage 0 F0 F1 ......B0    F2 B1    ...B2\n"
        "stage 1 ...F0 B0    F1 B1    F2 B2    ......\n");
  // Without the spaces behind the names, where only that fits.
  CHECK(chart(ScheduleKind::one_f_one_b, 2, 3, 8 + 24).rows ==
        "stage 0 F0F1....B0  F2B1  ..B2\n"
        "stage 1 ..F0B0  F1B1  F2B2  ....\n");
}

TEST_CASE("a chart too wide for names has letters that tell neighbours apart") {
  const TimelineChart drawn = chart(ScheduleKind::zb_h1, 2, 2, 16);
  CHECK_FALSE(drawn.is_named);
  CHECK(drawn.columns_left_out == 0);
  CHECK(drawn.rows ==
        "stage 0 Ff.IWiw\n"
        "stage 1 .FIfiWw\n");
}

TEST_CASE("a chart too wide for letters loses its middle, one too high its middle stages, and both are counted") {
  // 2 stages, 100 micro-batches: 3 * 100 + 3 columns; the last ones are of 96 to 99.
  const TimelineChart wide = chart(ScheduleKind::one_f_one_b, 2, 100, 8 + 23);
  CHECK(wide.rows ==
        "stage 0 Ff..BBFbbf ~ BFbbfBB.bb\n"
        "stage 1 .FBBfbbFBB ~ bbFBBfbb..\n");
  CHECK(wide.columns_left_out == 303 - 20);
  const Timetable deep = make_timetable(make_schedule(ScheduleKind::gpipe, 6, 1, 1), {});
  const TimelineChart high = draw_timeline(deep, 1, 120, 4);
  CHECK(high.stages_left_out == 2);
  CHECK(contains(high.rows, "\n... (2 stages)\nstage 4 "));
  CHECK_FALSE(contains(high.rows, "stage 2"));
}

TEST_CASE("a pipeline deeper than half a page is wide is drawn coarsely and whole") {
  const TimelineChart drawn = chart(ScheduleKind::one_f_one_b, 16, 16, 9 + 31);
  CHECK(drawn.columns_left_out == 0);
  // (M + P - 1) forwards and backwards, a backward as long as two forwards, in 31 columns.
  CHECK(drawn.forwards_per_column == Near(3.0));
  // The last stage works from the 15th to the 63rd of 93 units.
  CHECK(contains(drawn.rows, "\nstage 15 ....."));
  const std::string last = drawn.rows.substr(drawn.rows.find("\nstage 15 ") + 10);
  CHECK(last.find_first_not_of('.') == 5);
  CHECK(last.find_last_not_of(".\n") == 20);
}

TEST_CASE("work is drawn to scale, and work that takes no time leaves no mark") {
  // The first stage is an embedding alone, the second takes three units forward and six backward.
  const TimelineChart drawn = chart(ScheduleKind::gpipe, 2, 1, 80, {{0, 0, 0}, {3, 3, 3}});
  CHECK(drawn.rows ==
        "stage 0 .........\n"
        "stage 1 F0 B0\n");
}

TEST_CASE("letters tell the model chunks apart where the page has room") {
  // Two stages of two chunks, four micro-batches: 27 units of time, two columns for a forward.
  const Timetable timetable = make_timetable(make_schedule(ScheduleKind::interleaved, 2, 4, 2), {});
  const TimelineChart drawn = draw_timeline(timetable, 2, 8 + 60, 16);
  CHECK_FALSE(drawn.is_named);
  CHECK(drawn.tells_chunks);
  CHECK(drawn.rows ==
        "stage 0 F0f0F1f1F0..B1  f0b1  F1B0  f1b0  ..B1  ..b1  B0  b0\n"
        "stage 1 ..F0f0F1B1  f1b1  F0B0  f0b0  F1B1  f1b1  B0  b0  ....\n");
  // Names need four columns for a forward.
  CHECK(draw_timeline(timetable, 2, 120, 16).is_named);
  // No room for a deep pipeline's chunks.
  const Timetable deep = make_timetable(make_schedule(ScheduleKind::interleaved, 16, 16, 2), {});
  CHECK_FALSE(draw_timeline(deep, 2, 9 + 40, 16).tells_chunks);
}
