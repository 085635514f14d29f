// The wording of every error the library throws: what failed, which argument, what it got, what was
// expected and where that expectation comes from.
#include "error.h"

namespace tilewise {

void throw_invalid(std::string_view operation, std::string_view argument, std::string_view got,
                   std::string_view expected, std::string_view source) {
  std::string message;
  message.append(operation).append(": ").append(argument).append(" is ").append(got);
  message.append(", expected ").append(expected);
  if (!source.empty()) message.append(" (from ").append(source).append(")");
  throw Error(Status::invalid_argument, message);
}

void throw_unsupported(std::string_view operation, std::string_view what,
                       const std::vector<BackendAnswer>& answers) {
  std::string message;
  message.append(operation).append(": unsupported: ").append(what);
  for (const BackendAnswer& answer : answers) {
    message.append("\n  ").append(answer.backend).append(": ");
    if (answer.reasons.empty()) message.append("available by name only");
    for (size_t i = 0; i < answer.reasons.size(); ++i) {
      if (i > 0) message.append("; ");
      message.append(answer.reasons[i]);
    }
  }
  throw Error(Status::unsupported, message);
}

std::string_view name_of(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::invalid_argument:
      return "invalid argument";
    case Status::unsupported:
      return "unsupported";
    case Status::workspace_too_small:
      return "workspace too small";
    case Status::out_of_memory:
      return "out of memory";
    case Status::device_error:
      return "device error";
    case Status::internal:
      return "internal error";
  }
  return "unknown status";
}

}  // namespace tilewise
