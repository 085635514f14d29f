// Allocating, filling and inspecting the tensors of a Case.
#include "case/case_tensors.h"

#include <cstring>
#include <utility>

#include "error.h"
#include "reference/element.h"

namespace tilewise {

namespace {

using reference::write_element;

uint32_t read_bits(const std::byte* at, size_t bytes) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, bytes);  // little endian
  return bits;
}

uint64_t hash_of(const Guarded& memory) {
  uint64_t hash = memory.bytes();
  size_t at = 0;
  for (; at + 8 <= memory.bytes(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, memory.data() + at, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  for (; at < memory.bytes(); ++at) {
    hash = (hash ^ static_cast<uint64_t>(memory.data()[at])) * 0x9E3779B97F4A7C15u;
  }
  return hash;
}

std::string names_of(const Placement& placement) {
  std::string names;
  for (const Placement::View& view : placement.views) {
    names.append(names.empty() ? "" : "+").append(name_of(view.arg));
  }
  return names;
}

void fill_offsets(const std::vector<int64_t>& lens, void* data) {
  int64_t offset = 0;
  write_element(data, DType::i32, 0, 0.0);
  for (size_t i = 0; i < lens.size(); ++i) {
    offset += lens[i];
    write_element(data, DType::i32, static_cast<int64_t>(i) + 1, static_cast<double>(offset));
  }
}

CaseFileReader& file_reader() {
  static CaseFileReader reader = nullptr;
  return reader;
}

// Every size of `recorded` must reach that of the Case.
void check_recorded(const Case& c, const Tensor& recorded, Arg arg) {
  const bool queries = arg == Arg::q;
  const int64_t needed[] = {c.b, queries ? c.q : c.kv, queries ? c.hq : c.hkv,
                            arg == Arg::v ? c.dv : c.d};
  constexpr const char* kKeys[] = {"b", "rows", "heads", "columns"};
  for (size_t dim = 0; dim < 4; ++dim) {
    if (recorded.ndim == 4 && recorded.size[dim] >= needed[dim]) continue;
    const std::string has =
        recorded.ndim == 4 ? std::to_string(recorded.size[dim]) : "not four-dimensional";
    throw_invalid("case",
                  "data=file:" + c.file + ": " + kKeys[dim] + " of " + std::string(name_of(arg)),
                  has, std::to_string(needed[dim]) + " or more", "the case");
  }
}

CaseFile open_recording(const Case& c) {
  if (file_reader() == nullptr) {
    throw Error(Status::unsupported, "case: data=file:" + c.file + ": no reader of files is here");
  }
  CaseFile file = file_reader()(c.file);
  check_recorded(c, file.q, Arg::q);
  check_recorded(c, file.k, Arg::k);
  check_recorded(c, file.v, Arg::v);
  return file;
}

}  // namespace

void set_case_file_reader(CaseFileReader reader) { file_reader() = reader; }

std::string text_of(const ElementIndex& index) {
  return "[b=" + std::to_string(index.sequence) + ", row=" + std::to_string(index.row) +
         ", head=" + std::to_string(index.head) + ", " + std::to_string(index.column) + "]";
}

CaseTensors::CaseTensors(const Case& c, Poison poison)
    : case_(c), options_(options_of(c)), poison_(poison) {
  if (c.data == CaseData::file) file_ = open_recording(c);
  for (Placement& placement : placements_of(c)) allocate(std::move(placement));
  poison_outputs();
  seal_inputs();
}

void CaseTensors::allocate(Placement placement) {
  Allocation allocation;
  allocation.output = !placement.views.empty() && is_output(placement.views.front().arg);
  const auto bytes = static_cast<size_t>(placement.elements * size_of(placement.dtype));
  allocation.memory = Guarded(
      bytes, poison_,
      allocation.output ? Guarded::Place::between_canaries : Guarded::Place::flush_with_end);
  for (Placement::View& view : placement.views) {
    view.tensor.data = allocation.memory.data() + view.offset * size_of(placement.dtype);
    const bool backward_only =
        view.arg == Arg::d_out || view.arg == Arg::d_lse ||
        (is_output(view.arg) && view.arg != Arg::out && view.arg != Arg::lse);
    if (!backward_only) tensor_of(forward_, view.arg) = view.tensor;
    if (case_.dir == Direction::backward) tensor_of(backward_, view.arg) = view.tensor;
  }
  allocation.placement = std::move(placement);
  if (!allocation.output) {
    if (poison_ == Poison::on) allocation.memory.fill_poison(allocation.placement.dtype);
    fill_input(allocation);
  }
  allocations_.push_back(std::move(allocation));
}

void CaseTensors::fill_input(const Allocation& allocation) const {
  for (const Placement::View& view : allocation.placement.views) {
    void* const data = view.tensor.data;
    if (view.arg == Arg::cu_seqlens_q || view.arg == Arg::cu_seqlens_kv) {
      fill_offsets(view.arg == Arg::cu_seqlens_q ? case_.qlens : case_.kvlens, data);
    } else if (case_.data == CaseData::file &&
               (view.arg == Arg::q || view.arg == Arg::k || view.arg == Arg::v)) {
      copy_recorded(view);
    } else {
      for_each_element(
          case_, view.arg, view.tensor, [&](int64_t offset, const ElementIndex& index) {
            write_element(data, view.tensor.dtype, offset, case_value(case_, view.arg, index));
          });
    }
  }
}

void CaseTensors::copy_recorded(const Placement::View& view) const {
  const Tensor& from = view.arg == Arg::q ? file_.q : (view.arg == Arg::k ? file_.k : file_.v);
  for_each_element(case_, view.arg, view.tensor, [&](int64_t offset, const ElementIndex& index) {
    const int64_t at = index.sequence * from.stride[0] + index.row * from.stride[1] +
                       index.head * from.stride[2] + index.column;
    write_element(view.tensor.data, view.tensor.dtype, offset,
                  reference::read_element(from.data, from.dtype, at));
  });
}

void CaseTensors::fill_output(Allocation& allocation) {
  allocation.memory.fill_poison(allocation.placement.dtype);
  for (const Placement::View& view : allocation.placement.views) {
    const uint32_t bits = unwritten_bits(view.tensor.dtype);
    const int64_t bytes = size_of(view.tensor.dtype);
    auto* const data = static_cast<std::byte*>(view.tensor.data);
    for_each_element(case_, view.arg, view.tensor, [&](int64_t offset, const ElementIndex&) {
      std::memcpy(data + offset * bytes, &bits, static_cast<size_t>(bytes));
    });
  }
}

void CaseTensors::poison_outputs() {
  if (poison_ == Poison::off) return;
  for (Allocation& allocation : allocations_) {
    if (allocation.output) fill_output(allocation);
  }
}

std::vector<std::byte> CaseTensors::output_bytes() const {
  std::vector<std::byte> bytes;
  for (const Allocation& allocation : allocations_) {
    if (!allocation.output) continue;
    const std::byte* const data = allocation.memory.data();
    bytes.insert(bytes.end(), data, data + allocation.memory.bytes());
  }
  return bytes;
}

std::vector<std::span<std::byte>> CaseTensors::memory() const {
  std::vector<std::span<std::byte>> spans;
  for (const Allocation& allocation : allocations_) {
    spans.push_back(allocation.memory.accessible());
  }
  return spans;
}

void CaseTensors::seal_inputs() {
  if (poison_ == Poison::off) return;
  for (Allocation& allocation : allocations_) {
    if (!allocation.output) allocation.sealed = hash_of(allocation.memory);
  }
}

void CaseTensors::check_output(const Allocation& allocation,
                               std::vector<std::string>& texts) const {
  const Placement& placement = allocation.placement;
  const auto bytes = static_cast<size_t>(size_of(placement.dtype));
  std::vector<bool> owned(static_cast<size_t>(placement.elements));
  int64_t unwritten = 0;
  std::string first;
  for (const Placement::View& view : placement.views) {
    for_each_element(case_, view.arg, view.tensor, [&](int64_t offset, const ElementIndex& index) {
      const auto at = static_cast<size_t>(view.offset + offset);
      owned[at] = true;
      if (read_bits(allocation.memory.data() + at * bytes, bytes) !=
          unwritten_bits(placement.dtype)) {
        return;
      }
      if (unwritten++ == 0) first = std::string(name_of(view.arg)) + text_of(index);
    });
  }
  if (unwritten > 0) {
    texts.push_back(first + " was not written (" + std::to_string(unwritten) + " elements)");
  }
  for (size_t at = 0; at < owned.size(); ++at) {
    if (owned[at] || read_bits(allocation.memory.data() + at * bytes, bytes) ==
                         poison_bits(placement.dtype, static_cast<int64_t>(at))) {
      continue;
    }
    texts.push_back(names_of(placement) + ": element " + std::to_string(at) +
                    " of the memory was written, which is in a gap or a row past the end");
    break;
  }
}

std::vector<std::string> CaseTensors::violations(Direction ran) const {
  std::vector<std::string> texts;
  if (poison_ == Poison::off) return texts;
  for (const Allocation& allocation : allocations_) {
    const std::string names = names_of(allocation.placement);
    if (!allocation.output && hash_of(allocation.memory) != allocation.sealed) {
      texts.push_back(names + ": an input was written to");
    }
    ptrdiff_t where = 0;
    if (allocation.memory.changed_canary(&where)) {
      texts.push_back(names + ": memory outside the tensor was written, " + std::to_string(where) +
                      " bytes from its start");
    }
    const Arg arg = allocation.placement.views.front().arg;
    const bool written = arg == Arg::out || arg == Arg::lse || ran == Direction::backward;
    if (allocation.output && written) check_output(allocation, texts);
  }
  return texts;
}

}  // namespace tilewise
