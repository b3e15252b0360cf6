#include "ops/drawn_ids.h"

#include "ops/check.h"

namespace miles {

void fill_drawn_ids(Exec& exec, const FillDrawnIdsArgs& args) {
  const char* op = "fill_drawn_ids";
  check_tensor({op, "ids", args.ids}, DType::i32, {args.ids.elements()});
  check_tensor({op, "drawn", args.drawn}, DType::i32, {args.drawn.elements()});
  kernels(exec.device.kind()).fill_drawn_ids(exec, args);
}

}  // namespace miles
