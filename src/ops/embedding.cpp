#include "ops/embedding.h"

#include "ops/check.h"

namespace miles {

void embedding(Exec& exec, const EmbeddingArgs& args) {
  const char* op = "embedding";
  check_values({op, "table", args.table}, 2);
  check_values({op, "y", args.y}, 2);
  const int64_t rows = args.y.dim(0), columns = args.table.dim(1);
  check_tensor({op, "y", args.y}, args.table.dtype(), {rows, columns});
  check_tensor({op, "ids", args.ids}, DType::i32, {rows});
  kernels(exec.device.kind()).embedding(exec, args);
}

void scatter_rows(Exec& exec, const ScatterRowsArgs& args) {
  const char* op = "scatter_rows";
  check_values({op, "table", args.table}, 2);
  check_values({op, "y", args.y}, 2);
  const int64_t rows = args.y.dim(0), columns = args.table.dim(1);
  check_tensor({op, "y", args.y}, args.table.dtype(), {rows, columns});
  check_tensor({op, "ids", args.ids}, DType::i32, {rows});
  kernels(exec.device.kind()).scatter_rows(exec, args);
}

void embedding_backward(Exec& exec, const EmbeddingBackwardArgs& args) {
  const char* op = "embedding_backward";
  check_values({op, "dy", args.dy}, 2);
  check_values({op, "dtable", args.dtable}, 2);
  const int64_t rows = args.dy.dim(0), columns = args.dy.dim(1);
  check_tensor({op, "dtable", args.dtable}, DType::f32, {args.dtable.dim(0), columns});
  check_tensor({op, "ids", args.ids}, DType::i32, {rows});
  check_workspace(op, exec);
  kernels(exec.device.kind()).embedding_backward(exec, args);
}

}  // namespace miles
