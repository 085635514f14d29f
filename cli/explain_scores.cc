// tilewise explain --scores "2,1|0,3": the online softmax of one row, block by block, and what the
// row would be if the rescale were forgotten.
#include <fmt/format.h>

#include <cmath>

#include "cli/explain.h"
#include "cli/online_softmax.h"

namespace tilewise::cli {

namespace {

std::string numbers(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += fmt::format("{}{:.4f}", text.empty() ? "" : " ", value);
  return text;
}

// As typed: 2, -0.5, -inf.
std::string scores_text(const std::vector<double>& scores) {
  return fmt::format("{:g}", fmt::join(scores, ", "));
}

void print_step(const SoftmaxStep& step, size_t number) {
  fmt::print("block {}: scores {}\n", number, scores_text(step.scores));
  fmt::print("  m        max({:g}, block) = {:g}\n", step.old_max, step.new_max);
  if (number > 1) {
    fmt::print("  rescale  exp({:g} - {:g}) = {:.4f}{}\n", step.old_max, step.new_max, step.rescale,
               step.rescale == 1 ? ": the maximum stays, nothing changes" : "");
  }
  fmt::print("  weights  exp(score - m) = {}\n", numbers(step.weights));
  fmt::print("  l        {:.4f} x {:.4f} + {:.4f} = {:.4f}\n", step.old_sum, step.rescale,
             step.block_sum, step.new_sum);
  fmt::print("  output   {}   (not yet divided by l)\n\n", numbers(step.out));
}

void print_end(const SoftmaxWalk& walk) {
  const SoftmaxStep& last = walk.steps.back();
  fmt::print("end: maximum {:g}, sum {:.3f}, lse {:.4f}\n", last.new_max, last.new_sum,
             last.new_sum > 0 ? last.new_max + std::log(last.new_sum) : last.new_max);
  fmt::print("  output / l    {}\n", numbers(walk.weights));
  fmt::print("  in one pass   {}   largest difference {:.0e}\n", numbers(walk.one_pass_weights),
             walk.largest_difference);
  if (walk.steps.size() == 1) return;
  fmt::print("  no rescale    {}   sum {:.4f}\n\n", numbers(walk.unscaled_weights),
             last.unscaled_sum);
  if (walk.unscaled_error > 1e-12) {
    fmt::print(
        "Without the rescale a weight is wrong by {:.4f}: earlier blocks count as if their "
        "maximum\n"
        "still held. No shape, no error message shows it.\n",
        walk.unscaled_error);
  } else {
    fmt::print(
        "Without the rescale this row is right all the same: no later block raises the maximum.\n");
  }
}

std::vector<Row> rows_of(const SoftmaxWalk& walk) {
  std::vector<Row> rows;
  const auto add_row = [&rows](const char* table) -> Row& {
    return rows.emplace_back().add("table", std::string(table));
  };
  for (size_t i = 0; i < walk.steps.size(); ++i) {
    const SoftmaxStep& step = walk.steps[i];
    add_row("block")
        .add("block", static_cast<int64_t>(i + 1))
        .add("scores", scores_text(step.scores))
        .add("m", step.new_max)
        .add("rescale", step.rescale)
        .add("l", step.new_sum)
        .add("output", numbers(step.out))
        .add("l_without_rescale", step.unscaled_sum);
  }
  add_row("end")
      .add("m", walk.steps.back().new_max)
      .add("l", walk.steps.back().new_sum)
      .add("weights", numbers(walk.weights))
      .add("one_pass_weights", numbers(walk.one_pass_weights))
      .add("largest_difference", walk.largest_difference)
      .add("weights_without_rescale", numbers(walk.unscaled_weights))
      .add("error_without_rescale", walk.unscaled_error);
  return rows;
}

}  // namespace

int explain_scores(const ExplainOptions& options) {
  const SoftmaxWalk walk = walk_softmax(parse_scores(options.scores.value_or("")));
  if (options.shared.format == Format::json) {
    print_json(options.shared.command, rows_of(walk));
  } else if (options.shared.format == Format::csv) {
    print_csv(rows_of(walk));
  } else {
    fmt::print(
        "One row of scores in {} block{}. Values are one-hot rows, so the output is the "
        "weights.\n\n",
        walk.steps.size(), walk.steps.size() == 1 ? "" : "s");
    for (size_t i = 0; i < walk.steps.size(); ++i) print_step(walk.steps[i], i + 1);
    print_end(walk);
  }
  return 0;
}

}  // namespace tilewise::cli
