// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set. The including file defines V_TABLE and V_NAME, and includes the
// other templates first.
const struct cpu_isa V_TABLE = {
    .name = V_NAME,
    .rms_fwd = rms_fwd,
    .rms_bwd = rms_bwd,
    .rope = rope,
    .swiglu_fwd = swiglu_fwd,
    .swiglu_bwd = swiglu_bwd,
    .exp_row = exp_row,
    .adamw = adamw,
    .momentum = momentum,
    .step_by = step_by,
    .sumsq = sumsq,
    .add = add,
    .scale = scale,
    .exp = exp_all,
    .attn_fwd = attn_fwd,
    .attn_bwd = attn_bwd,
    .attn_softmax = tile_softmax,
    .attn_grad = tile_grad,
    .transpose = transpose,
    .dot = dot,
};
