// CaseTensors: every tensor of a Case, in the layout the Case asks for, in memory that shows
// misuse.
//
// Inputs are generated from the Case's seed, element by element from the logical index
// (tensor, sequence, row, head, column): the same values on every machine and in every layout, so
// a packed batch and a dense one hold the same numbers. Everything else (gaps between rows, rows
// past the last sequence, outputs, margins) is poisoned; violations() says what was touched that
// should not have been, and what was not written. docs/case.md lists layouts and data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "case/case.h"
#include "case/guarded.h"
#include "case/layout.h"
#include "problem.h"
#include "tilewise/tilewise.hpp"

namespace tilewise {

// Recorded q, k, v for data=file:NAME, dense [b, s, h, d]; at least as large as the Case.
struct CaseFile {
  std::shared_ptr<const void> memory;
  Tensor q;
  Tensor k;
  Tensor v;
};
// The library reads no files: whoever does (the command line, tests) names its reader once, which
// throws Error when there is no such recording. nullptr: data=file is refused.
using CaseFileReader = CaseFile (*)(const std::string& name);
void set_case_file_reader(CaseFileReader reader);

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

  // The memory of every tensor, canaries included.
  std::vector<std::span<std::byte>> memory() const;

  // Everything that is wrong with the memory after the calls so far: a changed input, canary, gap
  // or row past the end; an output element still unwritten. Looks at the gradients only when
  // backward has run. One text for each kind of damage to each allocation. Empty = all is well.
  std::vector<std::string> violations(Direction ran) const;

  // Poisons the outputs again, for another run.
  void poison_outputs();
  // A copy of all output memory, gaps included, to compare runs bit by bit.
  std::vector<std::byte> output_bytes() const;
  // Accepts the inputs as they are now: call it after writing to them by hand.
  void seal_inputs();

 private:
  struct Allocation {
    Placement placement;
    Guarded memory;
    bool output = false;
    uint64_t sealed = 0;  // hash of an input's bytes
  };
  void allocate(Placement placement);
  void fill_input(const Allocation& allocation) const;
  void copy_recorded(const Placement::View& view) const;
  void fill_output(Allocation& allocation);
  void check_output(const Allocation& allocation, std::vector<std::string>& texts) const;

  Case case_;
  Options options_;
  Poison poison_;
  CaseFile file_;
  Tensors forward_;
  Tensors backward_;
  std::vector<Allocation> allocations_;
};

// "[b=0, row=5, head=1, 7]"
std::string text_of(const ElementIndex& index);

}  // namespace tilewise
