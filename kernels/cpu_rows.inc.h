// SPDX-License-Identifier: Apache-2.0
// Inner loops over rows and flat arrays, for one instruction set: full vectors, then one partial
// vector.
#define V_EACH(i, n) (size_t i = 0; i + V_LANES <= (n); i += V_LANES)
#define V_REST(n)    ((n) - (n) % V_LANES) // where the partial vector begins

static float rms_fwd(float *y, float *h, const float *x, const float *r, const float *w, int d_,
                     float eps) {
    size_t d = (size_t)d_, rest = V_REST(d), left = d - rest;
    vf s0 = {0}, s1 = {0};
    for
        V_EACH(i, d) {
            vf a = r ? v_load(x + i) + v_load(r + i) : v_load(x + i);
            v_store(h + i, a);
            vf t = v_fma(a, a, s0); // two sums take turns: shorter dependency chains
            s0 = s1;
            s1 = t;
        }
    if (left) {
        vf a = v_load_part(x + rest, left);
        if (r)
            a += v_load_part(r + rest, left);
        v_store_part(h + rest, a, left);
        s0 = v_fma(a, a, s0);
    }
    float rstd = 1.0f / __builtin_sqrtf(v_sum(s0 + s1) / (float)d + eps);
    for
        V_EACH(i, d)
    v_store(y + i, v_load(h + i) * rstd * v_load(w + i));
    for (size_t i = rest; i < d; i++)
        y[i] = h[i] * rstd * w[i];
    return rstd;
}

static void rms_bwd(float *dh, float *dw, const float *dy, const float *h, const float *w,
                    float rstd, int d_) {
    size_t d = (size_t)d_, rest = V_REST(d);
    vf s0 = {0}, s1 = {0};
    for
        V_EACH(i, d) {
            vf t = v_fma(v_load(dy + i) * v_load(w + i), v_load(h + i), s0);
            s0 = s1;
            s1 = t;
        }
    float s = v_sum(s0 + s1);
    for (size_t i = rest; i < d; i++)
        s += dy[i] * w[i] * h[i];
    float back = s * rstd * rstd * rstd / (float)d; // mean(w dy n) * rstd^2 for n = h * rstd
    for
        V_EACH(i, d) {
            vf g = v_load(dy + i), x = v_load(h + i);
            v_store(dh + i, v_load(dh + i) + (g * v_load(w + i) * rstd - x * back));
            if (dw)
                v_store(dw + i, v_fma(g * rstd, x, v_load(dw + i)));
        }
    for (size_t i = rest; i < d; i++) {
        dh[i] += dy[i] * w[i] * rstd - h[i] * back;
        if (dw)
            dw[i] += dy[i] * rstd * h[i];
    }
}

static void rope(float *x, const float *cs, int heads, int head_dim, bool inverse) {
    float c[CPU_HEAD_DIM_MAX / 2], s[CPU_HEAD_DIM_MAX / 2], sign = inverse ? -1.0f : 1.0f;
    size_t half = (size_t)head_dim / 2;
    for (size_t i = 0; i < half; i++) {
        c[i] = cs[2 * i];
        s[i] = cs[2 * i + 1] * sign;
    }
    for (int h = 0; h < heads; h++, x += head_dim) {
        for
            V_EACH(i, half) {
                vf a = v_load(x + i), b = v_load(x + half + i), ci = v_load(c + i),
                   si = v_load(s + i);
                v_store(x + i, a * ci - b * si);
                v_store(x + half + i, b * ci + a * si);
            }
        for (size_t i = V_REST(half); i < half; i++) {
            float a = x[i], b = x[half + i];
            x[i] = a * c[i] - b * s[i];
            x[half + i] = b * c[i] + a * s[i];
        }
    }
}

V_INLINE vf silu_gate(vf g) { return 1.0f / (1.0f + v_exp(-g)); }

static void swiglu_fwd(float *y, const float *gate, const float *up, size_t n) {
    size_t rest = V_REST(n), left = n - rest;
    for
        V_EACH(i, n) {
            vf g = v_load(gate + i);
            v_store(y + i, g * silu_gate(g) * v_load(up + i));
        }
    if (left) {
        vf g = v_load_part(gate + rest, left);
        v_store_part(y + rest, g * silu_gate(g) * v_load_part(up + rest, left), left);
    }
}

V_INLINE void swiglu_grad(vf dy, vf g, vf u, vf *dg, vf *du) {
    vf sig = silu_gate(g), act = g * sig;
    *du = dy * act;
    *dg = dy * u * v_fma(act, 1.0f - sig, sig); // sig * (1 + g * (1 - sig))
}

static void swiglu_bwd(float *dgate, float *dup, const float *dy, const float *gate,
                       const float *up, size_t n) {
    size_t rest = V_REST(n), left = n - rest;
    vf dg, du;
    for
        V_EACH(i, n) {
            swiglu_grad(v_load(dy + i), v_load(gate + i), v_load(up + i), &dg, &du);
            v_store(dgate + i, dg);
            v_store(dup + i, du);
        }
    if (left) {
        swiglu_grad(v_load_part(dy + rest, left), v_load_part(gate + rest, left),
                    v_load_part(up + rest, left), &dg, &du);
        v_store_part(dgate + rest, dg, left);
        v_store_part(dup + rest, du, left);
    }
}

static double exp_row(float *z, size_t n, float *max) {
    enum { CHUNK = 2048 }; // a chunk is summed in fp32, chunks in double: vocabularies are long
    size_t rest = V_REST(n), left = n - rest;
    vf m = v_set(z[0]);
    for
        V_EACH(i, n)
    m = v_max(m, v_load(z + i));
    float top = v_top(m);
    for (size_t i = rest; i < n; i++)
        top = z[i] > top || z[i] != z[i] ? z[i] : top;
    double sum = 0;
    for (size_t from = 0; from < rest; from += CHUNK) {
        vf s = {0};
        size_t to = from + CHUNK < rest ? from + CHUNK : rest;
        for (size_t i = from; i < to; i += V_LANES) {
            vf e = v_exp(v_load(z + i) - top);
            v_store(z + i, e);
            s += e;
        }
        sum += (double)v_sum(s);
    }
    if (left) {
        vf e = v_exp(v_load_part(z + rest, left) - top);
        v_store_part(z + rest, e, left);
        for (size_t i = 0; i < left; i++)
            sum += (double)e[i];
    }
    *max = top;
    return sum;
}

struct adamw_consts {
    float g, b1, b2, a1, a2, inv1, inv2, eps, lr, keep;
};
V_INLINE void adamw_step(const struct adamw_consts *k, vf *p, vf g, vf *m, vf *v) {
    g *= k->g;
    *m = v_fma(v_set(k->b1), *m, k->a1 * g);
    *v = v_fma(v_set(k->b2), *v, k->a2 * g * g);
    vf update = *m * k->inv1 / (v_sqrt(*v * k->inv2) + k->eps);
    *p = v_fma(v_set(-k->lr), update, *p * k->keep);
}

static void adamw(const struct kern_adamw *c, float by, float *p, const float *g, float *m,
                  float *v, size_t n) {
    const struct adamw_consts k = {.g = by,
                                   .b1 = c->beta1,
                                   .b2 = c->beta2,
                                   .a1 = (float)(1 - (double)c->beta1),
                                   .a2 = (float)(1 - (double)c->beta2),
                                   .inv1 = (float)(1 / (double)c->bias1),
                                   .inv2 = (float)(1 / (double)c->bias2),
                                   .eps = c->eps,
                                   .lr = c->lr,
                                   .keep = (float)(1 - (double)c->lr * (double)c->weight_decay)};
    size_t rest = V_REST(n), left = n - rest;
    for
        V_EACH(i, n) {
            vf pi = v_load(p + i), mi = v_load(m + i), vv = v_load(v + i);
            adamw_step(&k, &pi, v_load(g + i), &mi, &vv);
            v_store(p + i, pi);
            v_store(m + i, mi);
            v_store(v + i, vv);
        }
    if (left) {
        vf pi = v_load_part(p + rest, left), mi = v_load_part(m + rest, left),
           vv = v_load_part(v + rest, left);
        adamw_step(&k, &pi, v_load_part(g + rest, left), &mi, &vv);
        v_store_part(p + rest, pi, left);
        v_store_part(m + rest, mi, left);
        v_store_part(v + rest, vv, left);
    }
}

static void momentum(float b, float by, float *g, float *m, size_t n) {
    vf vb = v_set(b), va = v_set((float)(1 - (double)b));
    size_t rest = V_REST(n), left = n - rest;
    for
        V_EACH(i, n) {
            vf gi = va * (v_load(g + i) * by), mi = v_fma(vb, v_load(m + i), gi);
            v_store(m + i, mi);
            v_store(g + i, v_fma(vb, mi, gi));
        }
    if (left) {
        vf gi = va * (v_load_part(g + rest, left) * by),
           mi = v_fma(vb, v_load_part(m + rest, left), gi);
        v_store_part(m + rest, mi, left);
        v_store_part(g + rest, v_fma(vb, mi, gi), left);
    }
}

// p = keep p - step x
static void step_by(float *p, const float *x, float keep, float step, size_t n) {
    vf k = v_set(keep), s = v_set(-step);
    size_t rest = V_REST(n), left = n - rest;
    for
        V_EACH(i, n)
    v_store(p + i, v_fma(s, v_load(x + i), v_load(p + i) * k));
    if (left)
        v_store_part(p + rest,
                     v_fma(s, v_load_part(x + rest, left), v_load_part(p + rest, left) * k), left);
}

static double sumsq(const float *x, size_t n) {
    enum { HALF = V_LANES / 2 };
    vd s[4] = {{0}};
    size_t i = 0;
    for (; i + 4 * HALF <= n; i += 4 * HALF)
        for (size_t j = 0; j < 4; j++) {
            vd a = __builtin_convertvector(*(const vh_mem *)(x + i + j * HALF), vd);
            s[j] += a * a;
        }
    vd t = (s[0] + s[1]) + (s[2] + s[3]);
    double sum = 0;
    for (int j = 0; j < HALF; j++)
        sum += t[j];
    for (; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static void add(float *y, const float *x, size_t n) {
    for
        V_EACH(i, n)
    v_store(y + i, v_load(y + i) + v_load(x + i));
    for (size_t i = V_REST(n); i < n; i++)
        y[i] += x[i];
}

static void scale(float *y, float a, size_t n) {
    for
        V_EACH(i, n)
    v_store(y + i, v_load(y + i) * a);
    for (size_t i = V_REST(n); i < n; i++)
        y[i] *= a;
}

static void exp_all(float *y, const float *x, size_t n) {
    size_t rest = V_REST(n), left = n - rest;
    for
        V_EACH(i, n)
    v_store(y + i, v_exp(v_load(x + i)));
    if (left)
        v_store_part(y + rest, v_exp(v_load_part(x + rest, left)), left);
}
