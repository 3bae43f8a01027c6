// The parity harness: a case is one call of one operation on fixed data; it is run on the f64 reference and on a
// backend under test, and every element of every output is compared. Data is rounded when it is made, to f32 and, for
// operands of the compute type, to the type under test, so both see the same numbers.
//
// The tolerance of an element is unit · √K · max(|expected|, scale): K is the length of the operation's longest
// reduction (1 for elementwise), scale the size of what is summed into the element (root of the sum of the squared
// terms), so that cancellation is judged fairly. check_parity also refuses cases whose scales are far above the
// results: a lax scale would hide errors.
//
// Under bf16 and fp16 the same holds, since products and sums are f32 there too, and nothing else is measured: rounding
// is monotonic, so a result within that tolerance is stored as a number between the roundings of the interval's ends,
// and that is what is asked. Where an operation says that it also rounds a factor of its sums (attention multiplies
// probabilities of the compute type), each term t is off by at most u·|t|, u half a unit in the last place of 1, and
// spread evenly: the sum by a standard deviation of at most u/√3 · scale per rounded factor, of which the tolerance
// takes seven, 4·u·scale.
//
// TF32 keeps 10 bits of a factor behind the leading one. Rounded to the nearest, a factor is off by 2^-11 of itself at
// most, either way; cut off, by 0 to 2^-10, which is 2^-11 around a mean of 2^-11. The means of both factors move a sum
// of products by at most 2^-10 of it, and that sum is at most |expected| + √2·scale, since a bias and an addend are in
// the scale too. The rest is as above: 4·2^-11·scale for each of the two.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace scaletrain::parity {

using Values = std::vector<double>;
using Ids = std::vector<std::int32_t>;

// n numbers of the normal distribution, rounded to f32; `name` chooses the stream.
Values normal(const std::string& name, std::int64_t count, double mean = 0.0, double deviation = 1.0);
// n integers in [0, bound).
Ids random_ids(const std::string& name, std::int64_t count, std::int64_t bound);
Values rounded_to_float(Values values);
Values map(const Values& values, double (*function)(double));
double square(double value);

// A backend with operands in its memory, each between guard bytes that no kernel may touch.
class Device {
 public:
  explicit Device(Backend& backend) : Device(backend, backend.compute_type()) {}
  // rounding: what operands of the compute type are rounded to first, for a backend whose own type is wider.
  Device(Backend& backend, DType rounding) : backend_(backend), rounding_(rounding), stream_(backend.make_stream()) {}
  // Operands lie an element behind what they would be aligned to.
  static Device of_unaligned(Backend& backend) {
    Device device(backend);
    device.is_unaligned_ = true;
    return device;
  }

  // An operand of the compute type.
  View put(const Values& values, Shape shape);
  // The same with rows as long as the backend would have them: what they are padded by is NaN.
  View put_padded(const Values& values, std::int64_t rows, std::int64_t columns);
  // What an operand of the compute type holds of these values.
  Values rounded(Values values) const;
  // An operand of the master type.
  View put_master(const Values& values, Shape shape);
  View put_as(DType dtype, const Values& values, Shape shape);
  View put_ids(const Ids& ids, Shape shape);
  View put_bytes(const Ids& bytes, Shape shape);
  View put_numbers(const std::vector<std::int64_t>& numbers, Shape shape);
  Weight put_weight(const Values& values, Shape shape, bool packed);
  static Values get(const ConstView& view);
  // Of a matrix whose rows may be padded.
  static Values get(const ConstView& matrix, std::int64_t columns);
  bool guards_intact() const;
  Backend& backend() { return backend_; }

  template <class Descriptor>
  void run(const Descriptor& op) {
    backend_.run(*stream_, op);
    stream_->synchronize();
  }

 private:
  View allocate(DType dtype, Shape shape);

  Backend& backend_;
  DType rounding_;
  bool is_unaligned_ = false;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
  struct Extent {
    std::size_t before = 0, bytes = 0;
  };
  std::vector<Extent> extents_;
  std::vector<std::unique_ptr<PackedWeight>> packed_;
};

// An operand whose rows lie `stride` apart, at `offset`, inside a wider matrix: a part of a fused projection.
struct Strided {
  View whole;  // [rows, stride]
  std::int64_t offset = 0;
  std::int64_t width = 0;

  std::int64_t stride() const { return whole.shape()[1]; }
  View view() const;
  void set(const Values& values) const;
  Values get() const;
};

enum class Kind {
  master,   // f32 or better
  compute,  // the operation's output is of the compute type
  around    // memory around the outputs that must stay as it was
};

struct Output {
  std::string name;
  Values values;
  Kind kind = Kind::compute;
};

inline constexpr double untouched = -1.0;  // a scale: the element must be exactly the expected one

struct Case {
  std::string name;
  double reduction_length = 1;
  std::function<std::vector<Output>(Device&)> run;
  std::vector<Values> scales;  // one per output that comes from the operation, of its size
  double unit = 1e-6;
  int rounded_factors = 0;  // of each term of the sums, under bf16 and fp16
  bool in_tf32 = false;     // both factors of each product
  // What the first output's sums of products have added to them, by absolute value.
  Values epilogue = {};
};

// Of halves, where a bias and an addend are added: cuBLASLt may round the sum of products, and again the sum with the
// bias. By how much is bounded by half a step of what is rounded, and that by the result and what is added.
enum class Epilogue { exact, rounded_between };

// How the operands of cases lie: unaligned are those of every second case, an element behind where they would be
// aligned.
enum class Addresses { aligned, unaligned_by_turns };

// The sentence that says where the outputs differ beyond tolerance, or nothing.
std::optional<std::string> find_mismatch(const Case& c, DType compute, const std::vector<Output>& expected,
                                         const std::vector<Output>& found, Epilogue epilogue = Epilogue::exact);
// Before the rounding of what is stored.
double tolerance(const Case& c, DType compute, double expected, double scale);
double rounded_to(DType type, double value);

// Runs all cases on every backend of a compute type, twice each (the bits must repeat), and reports through doctest.
// Backends whose instruction set the processor lacks are named and skipped.
void check_parity(const std::string& operation, const std::vector<Case>& cases, DType compute);

// The same of a backend of GPUs.
void check_parity_of(Backend& backend, const std::string& operation, const std::vector<Case>& cases,
                     Addresses addresses = Addresses::aligned);

// The same of one whose products of linear maps are in TF32: some results must be further off than f32's may be.
void check_parity_in_tf32(Backend& backend, const std::string& operation, std::vector<Case> cases);

// Plants one error of three tolerances in the last element of each output of each case: every one must be found. A
// third of the cases each is of f32, bf16 and fp16; of the halves it is of three tolerances and two steps of the type.
void check_that_planted_errors_are_found(const std::string& operation, const std::vector<Case>& all);

}  // namespace scaletrain::parity
