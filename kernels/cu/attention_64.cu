// Attention of head sizes up to 64 on tensor cores.
#include "attention_backward.cuh"
#include "attention_forward.cuh"

FORWARD(bf16, 64)
FORWARD(f16, 64)
BACKWARD(bf16, 64)
BACKWARD(f16, 64)
