// CaseTensors: every tensor of a Case, in the layout the Case asks for, in memory that shows
// misuse.
//
// Inputs are generated from the Case's seed, element by element from the logical index
// (tensor, sequence, row, head, column): the same values on every machine and in every layout, so
// a packed batch and a dense one hold the same numbers. Everything else (gaps between rows, rows
// past the last sequence, outputs, margins) is poisoned; violations() says what was touched that
// should not have been, and what was not written. docs/case.md lists layouts and data.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "case/case.h"
#include "case/guarded.h"
#include "problem.h"
#include "tilewise/tilewise.hpp"

namespace tilewise {

class CaseTensors {
 public:
  // Poison::off: the same inputs and layouts in plain memory, for `bench`.
  explicit CaseTensors(const Case& c, Poison poison = Poison::on);

  const Case& text() const { return case_; }
  // The Case's options, with max_q_len and max_kv_len of a packed batch.
  const Options& options() const { return options_; }
  // q, k, v, out, lse and the optional inputs. A backward Case always has lse.
  const Tensors& forward() const { return forward_; }
  // The same memory with d_out, d_lse and the wanted gradients; only for a backward Case.
  const Tensors& backward() const { return backward_; }

  // Everything that is wrong with the memory after the calls so far: a changed input, canary, gap
  // or row past the end; an output element still unwritten. Looks at the gradients only when
  // backward has run. At most a few texts for each tensor. Empty = all is well.
  std::vector<std::string> violations(Direction ran) const;

  // Poisons the outputs again, for another run.
  void poison_outputs();
  // Accepts the inputs as they are now: call it after writing to them by hand.
  void seal_inputs();

 private:
  struct Owned {  // one allocation and the views into it
    Guarded memory;
    DType dtype = DType::none;
    bool output = false;
    std::vector<Arg> views;
    uint64_t sealed = 0;  // hash of an input's bytes
  };
  friend class CaseLayouter;

  Case case_;
  Options options_;
  Tensors forward_;
  Tensors backward_;
  Poison poison_;
  std::vector<Owned> owned_;
};

}  // namespace tilewise
