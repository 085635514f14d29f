// The recurrence in doubles, kept apart from printing so that tests can hold it to known numbers.
#include "cli/online_softmax.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "cli/tensor_file.h"

namespace tilewise::cli {

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();
constexpr size_t kMostScores = 64;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

double parse_score(const std::string& word) {
  char* end = nullptr;
  const double score = std::strtod(word.c_str(), &end);
  while (*end == ' ') ++end;
  const bool number = end != word.c_str() && *end == '\0';
  if (!number || std::isnan(score) || score == -kNothing) {
    throw InputError(fmt::format(
        "--scores: \"{}\" is no score, expected numbers such as \"1,3|2,5\" (-inf: masked)", word));
  }
  return score;
}

// exp(score - maximum), 0 while the maximum is that of nothing.
double weight_of(double score, double maximum) {
  return score == kNothing ? 0 : std::exp(score - maximum);
}

std::vector<double> divided(std::vector<double> values, double by) {
  for (double& value : values) value = by > 0 ? value / by : 0;
  return values;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

SoftmaxStep next_step(const SoftmaxStep& before, const std::vector<double>& scores) {
  SoftmaxStep step;
  step.scores = scores;
  step.old_max = before.new_max;
  step.new_max = std::max(step.old_max, *std::max_element(scores.begin(), scores.end()));
  step.rescale = weight_of(step.old_max, step.new_max);
  step.old_sum = before.new_sum;
  for (const double score : scores) {
    step.weights.push_back(weight_of(score, step.new_max));
    step.block_sum += step.weights.back();
  }
  step.new_sum = step.old_sum * step.rescale + step.block_sum;
  step.unscaled_sum = before.unscaled_sum + step.block_sum;
  step.out = before.out;
  for (double& value : step.out) value *= step.rescale;
  step.unscaled_out = before.unscaled_out;
  for (const double weight : step.weights) {
    step.out.push_back(weight);
    step.unscaled_out.push_back(weight);
  }
  return step;
}

}  // namespace

std::vector<std::vector<double>> parse_scores(const std::string& text) {
  std::vector<std::vector<double>> blocks;
  size_t count = 0;
  for (const std::string& part : split(text, '|')) {
    std::vector<double>& block = blocks.emplace_back();
    for (const std::string& word : split(part, ',')) block.push_back(parse_score(word));
    count += block.size();
  }
  if (count > kMostScores) {
    throw InputError(fmt::format("--scores: {} scores, expected at most {}", count, kMostScores));
  }
  return blocks;
}

SoftmaxWalk walk_softmax(const std::vector<std::vector<double>>& blocks) {
  SoftmaxWalk walk;
  SoftmaxStep last;
  last.new_max = kNothing;
  std::vector<double> row;
  for (const std::vector<double>& block : blocks) {
    last = next_step(last, block);
    walk.steps.push_back(last);
    row.insert(row.end(), block.begin(), block.end());
  }
  SoftmaxStep nothing;
  nothing.new_max = kNothing;
  const SoftmaxStep whole = next_step(nothing, row);
  walk.weights = divided(last.out, last.new_sum);
  walk.one_pass_weights = divided(whole.out, whole.new_sum);
  walk.largest_difference = largest_difference(walk.weights, walk.one_pass_weights);
  walk.unscaled_weights = divided(last.unscaled_out, last.unscaled_sum);
  walk.unscaled_error = largest_difference(walk.unscaled_weights, walk.one_pass_weights);
  return walk;
}

}  // namespace tilewise::cli
