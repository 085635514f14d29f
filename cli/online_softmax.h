// The online softmax of a few scores, one block after the other, with everything a reader wants to
// see: m, l, the factor that rescales what is old, the partial output, and what comes out when that
// factor is forgotten. Values are one-hot rows, so the output is the row of weights.
#pragma once

#include <string>
#include <vector>

namespace tilewise::cli {

struct SoftmaxStep {
  std::vector<double> scores;  // of the block
  double old_max = 0;          // -inf before the first
  double new_max = 0;
  double rescale = 0;           // exp(old_max - new_max): of l and of the partial output
  std::vector<double> weights;  // exp(score - new_max)
  double block_sum = 0;
  double old_sum = 0;
  double new_sum = 0;
  std::vector<double> out;  // partial: not yet divided by l
  double unscaled_sum = 0;  // the same without the rescale
  std::vector<double> unscaled_out;
};

struct SoftmaxWalk {
  std::vector<SoftmaxStep> steps;
  std::vector<double> weights;           // out / l at the end
  std::vector<double> one_pass_weights;  // softmax of the whole row
  double largest_difference = 0;         // between the two
  std::vector<double> unscaled_weights;  // without the rescale
  double unscaled_error = 0;             // its largest error
};

// "1,3|2,5": scores by commas, blocks by bars; -inf is a masked score. Throws InputError.
std::vector<std::vector<double>> parse_scores(const std::string& text);
SoftmaxWalk walk_softmax(const std::vector<std::vector<double>>& blocks);

}  // namespace tilewise::cli
