// SPDX-License-Identifier: Apache-2.0
// Foreign config.json and adapter_config.json. An accepted file describes a model that can be laid
// out. The model is the same after we write the file and read it again.
#include "intra/hf/hf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct intra_hf_config c, back;
    struct intra_trainable t, same;
    if (intra_hf_config_parse((const char *)data, size, "config.json", &c) == NEB_OK) {
        NEB_ASSERT(intra_model_config_check(&c.model) == NEB_OK);
        json_t *o = intra_hf_config_json(&c, "float32");
        char *text = json_dumps(o, JSON_REAL_PRECISION(9));
        NEB_ASSERT(text &&
                   intra_hf_config_parse(text, strlen(text), "config.json", &back) == NEB_OK);
        NEB_ASSERT(intra_hf_config_same(&back, &c.model, "back") == NEB_OK &&
                   back.window == c.window && back.model.max_seq == c.model.max_seq &&
                   back.bos == c.bos && back.eos == c.eos);
        free(text);
        json_decref(o);
    }
    if (intra_hf_peft_parse((const char *)data, size, "adapter_config.json", 2, &t) == NEB_OK) {
        NEB_ASSERT(t.lora_rank >= 1 && t.lora_targets && t.lora_targets < 128);
        json_t *o = intra_hf_peft_json(&t, NULL);
        char *text = json_dumps(o, JSON_REAL_PRECISION(9));
        NEB_ASSERT(text && intra_hf_peft_parse(text, strlen(text), "a", 2, &same) == NEB_OK &&
                   same.lora_rank == t.lora_rank && same.lora_alpha == t.lora_alpha &&
                   same.lora_targets == t.lora_targets);
        free(text);
        json_decref(o);
    }
    return 0;
}
