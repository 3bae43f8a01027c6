// The losses of a run as a picture of characters, for a terminal or a file.
#pragma once

#include <cstddef>
#include <string>

#include "telemetry/metrics_reader.h"

namespace scaletrain {

struct CurveOptions {
  std::size_t width = 72;   // columns of the whole picture
  std::size_t height = 12;  // lines of the losses
};

// Training as the mean of each column's steps ('*'), and up to three validation sets ('o', 'x', '+'), over the steps,
// in plain characters: at most `width` columns (at least 40) and height + 3 lines above the legend, which takes the
// lines that it needs. A single line where there is nothing to draw yet.
std::string draw_loss_curve(const Metrics& metrics, const CurveOptions& options);

}  // namespace scaletrain
