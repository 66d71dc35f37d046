// Attention of head sizes from 72 to 128 on tensor cores.
#include "attention_backward.cuh"
#include "attention_forward.cuh"

FORWARD(bf16, 128)
FORWARD(f16, 128)
BACKWARD(bf16, 128)
BACKWARD(f16, 128)
