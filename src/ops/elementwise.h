// The small ones: conversion, addition, and the sum of squares that gradient clipping needs.
#pragma once

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace miles {

/// to = from, converted (f32 ↔ bf16; round to nearest even), or copied when the types are equal.
/// Where `squares` is given it becomes what sum_of_squares says of `to`, bit for bit.
struct CastArgs {
  Tensor from;          // [n]
  Tensor to;            // [n]
  Tensor squares = {};  // [1] f32, or none
};
void cast(Exec& exec, const CastArgs& args);

/// sum = x + y. f32 arithmetic, rounded once.
struct AddArgs {
  Tensor x;    // [n] T
  Tensor y;    // [n] T
  Tensor sum;  // [n] T; may be x or y
};
void add(Exec& exec, const AddArgs& args);

/// out[0] = Σ x². Fixed chunks of 65,536 summed in f64 and added in order: independent of threads.
/// NaN or ∞ in x shows in the result.
struct SumOfSquaresArgs {
  Tensor x;    // [n] f32 or bf16
  Tensor out;  // [1] f32
};
void sum_of_squares(Exec& exec, const SumOfSquaresArgs& args);

}  // namespace miles
