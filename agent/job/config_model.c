// SPDX-License-Identifier: Apache-2.0
#include "agent/job/model.h"

struct intra_model_config agent_job_model(const struct agent_job *job,
                                          const struct agent_shape *shape, int32_t vocab,
                                          enum kern_mask mask) {
    static const struct agent_shape same;
    const struct agent_shape *x = shape ? shape : &same;
    struct intra_model_config m = job->model;
    m.n_layers = x->n_layers ? x->n_layers : m.n_layers;
    m.d_model = x->d_model ? x->d_model : m.d_model;
    m.n_heads = x->n_heads ? x->n_heads : m.n_heads;
    m.d_ff = x->d_ff ? x->d_ff : m.d_ff;
    if (x->d_model || x->n_heads)
        m.n_kv_heads = m.head_dim = 0;
    m.vocab = vocab;
    m.n_kv_heads = m.n_kv_heads ? m.n_kv_heads : m.n_heads;
    m.head_dim = m.head_dim ? m.head_dim : m.d_model / m.n_heads;
    m.max_seq = job->seq_len;
    m.mask = mask;
    return m;
}
