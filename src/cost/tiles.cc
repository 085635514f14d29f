// The working-set equation solved for rows; see tiles.h.
#include "cost/tiles.h"

#include <algorithm>
#include <cmath>

namespace tilewise {

namespace {

constexpr int64_t kInnerKeys = 64;  // enough for a matrix unit; more only takes room from rows
constexpr int64_t kRowStep = 16;    // rows of the smallest matrix instruction

// rows * a_row + keys * a_key + rows * keys * a_pair
struct SetParts {
  double a_row = 0;
  double a_key = 0;
  double a_pair = 0;
};

SetParts parts_of(const AttentionShape& shape, const ScheduleChoice& choice) {
  const auto element = static_cast<double>(size_of(shape.dtype));
  const double sum = cost_model::accumulator_bytes(shape, choice.accounting);
  const auto d = static_cast<double>(shape.head_dim);
  const auto dv = static_cast<double>(shape.value_dim);
  const double statistics = choice.accounting == Accounting::full ? 2 * sum : 0;
  if (choice.schedule == Schedule::recompute_backward) {
    return {(d + dv) * element + d * sum + statistics, (d + dv) * (element + sum), 2 * sum};
  }
  return {d * element + dv * sum + statistics, (d + dv) * element, sum};
}

int64_t fitting_rows(const AttentionShape& shape, const ScheduleChoice& choice, double fast_bytes) {
  const int64_t rows = largest_tile_rows(shape, choice, fast_bytes);
  return rows > kRowStep ? rows / kRowStep * kRowStep : std::max<int64_t>(1, rows);
}

}  // namespace

double working_set_bytes(const AttentionShape& shape, const ScheduleChoice& choice) {
  const SetParts parts = parts_of(shape, choice);
  const auto rows = static_cast<double>(choice.tile_rows);
  const auto keys = static_cast<double>(choice.tile_keys);
  return rows * parts.a_row + keys * parts.a_key + rows * keys * parts.a_pair;
}

int64_t largest_tile_rows(const AttentionShape& shape, const ScheduleChoice& choice,
                          double fast_bytes) {
  const SetParts parts = parts_of(shape, choice);
  const auto keys = static_cast<double>(choice.tile_keys);
  const double rows =
      std::floor((fast_bytes - keys * parts.a_key) / (parts.a_row + keys * parts.a_pair));
  return std::max<int64_t>(0, static_cast<int64_t>(rows));
}

namespace cost_model {

double accumulator_bytes(const AttentionShape& shape, Accounting accounting) {
  return accounting == Accounting::full ? 4.0 : static_cast<double>(size_of(shape.dtype));
}

ScheduleChoice with_tiles(const AttentionShape& shape, ScheduleChoice choice, double fast_bytes) {
  const bool keys_outside = choice.schedule == Schedule::tiled_kv_outside ||
                            choice.schedule == Schedule::recompute_backward;
  if (choice.tile_keys == 0 && keys_outside) {
    const double half = std::floor(fast_bytes / (2 * parts_of(shape, choice).a_key));
    choice.tile_keys = std::max<int64_t>(1, static_cast<int64_t>(half));
  } else if (choice.tile_keys == 0) {
    choice.tile_keys = kInnerKeys;
    while (choice.tile_keys > 1 && largest_tile_rows(shape, choice, fast_bytes) < kRowStep) {
      choice.tile_keys /= 2;
    }
  }
  if (choice.tile_rows == 0) {
    choice.tile_rows = fitting_rows(shape, choice, fast_bytes);
    if (keys_outside) choice.tile_rows = std::min(choice.tile_rows, shape.head_dim);
  }
  return choice;
}

}  // namespace cost_model

}  // namespace tilewise
