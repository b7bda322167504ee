# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model as the teacher of mode distill.

usage: teach_hf.py MODEL TOKENIZER     MODEL: a folder; TOKENIZER: the student's vocabulary

    nebula distill configs/examples/teach_hf.yaml --local 2 --out out/teach &
    NEBULA_AGENT=out/teach/clusters/paris python3 teach_hf.py MODEL CORPUS/tokenizer.model
"""
import sys

import transformers

import nebula
from nebula.adapters import HuggingFace, teach

kind = transformers.AutoConfig.from_pretrained(sys.argv[1])
auto = transformers.AutoModelForSeq2SeqLM if kind.is_encoder_decoder else (
    transformers.AutoModelForCausalLM)
with nebula.teacher(sys.argv[2]) as teacher:
    teach(teacher, HuggingFace(auto.from_pretrained(sys.argv[1])))
