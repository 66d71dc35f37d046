// Attention of head sizes from 136 to 256 on tensor cores.
#include "attention_backward.cuh"
#include "attention_forward.cuh"

FORWARD(bf16, 256)
FORWARD(f16, 256)
BACKWARD(bf16, 256)
BACKWARD(f16, 256)
