# SPDX-License-Identifier: Apache-2.0
"""Programs of the case `sides` of attached.py.

usage: sides.py check DIR           distill_loss against its formula; adapters against the models;
                                    saves a small Hugging Face model in DIR
       sides.py learn TOKENIZER     a small torch model as the student
"""
import math
import pathlib
import random
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "agent/lib/python"))
import nebula
from nebula.adapters import HuggingFace
from nebula.align import Aligned, Vocabulary

V = 512
torch.manual_seed(3)


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128))


def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=V, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0))


def by_hand(z, target, ids, logp, tail, lam, T):
    """kern_soft of kernels/kern.h for one row, with Python's doubles."""
    def log_softmax(x):
        top = max(x)
        total = math.log(sum(math.exp(v - top) for v in x)) + top
        return [v - total for v in x]
    logq = log_softmax([v / T for v in z])
    kl = sum(math.exp(p) * (p - logq[i]) for i, p in zip(ids, logp))
    rest = max(sum(math.exp(q) for i, q in enumerate(logq) if i not in ids), 1e-12)
    kl += tail * (math.log(tail) - math.log(rest)) if tail > 0 else 0
    return (1 - lam) * -log_softmax(z)[target] + lam * T * T * kl


def check_loss():
    far = 0
    for lam, T, k in ((0.5, 1.5, 4), (1, 1, 1), (0, 2, 8), (0.3, 4, 16)):
        rows, size = 12, 60
        z = (3 * torch.randn(rows, size)).requires_grad_()
        target = torch.randint(size, (rows,))
        p = torch.softmax(2 * torch.randn(rows, size), -1).topk(k, -1)
        tails = 1 - p.values.sum(-1)
        tails[0] = 0
        loss = nebula.distill_loss(z, target, p.indices, p.values.log(), tails, lambda_=lam,
                                   temperature=T)
        want = sum(by_hand(z[i].tolist(), int(target[i]), p.indices[i].tolist(),
                           p.values[i].log().tolist(), float(tails[i]), lam, T)
                   for i in range(rows)) / rows
        far = max(far, abs(loss.item() - want) / max(1, abs(want)))
        loss.backward()
        # dKL/dz of a named class is (q - p) / T; the gradient of a row sums to zero
        assert torch.isfinite(z.grad).all() and z.grad.sum(-1).abs().max() < 1e-5
    print(f"distill_loss is within {far:.1e} of the formula")
    assert far < 1e-5


def check_adapters():
    r = random.Random(1)
    sequences = [([r.randrange(3, V) for _ in range(n)], prefix)
                 for n, prefix in ((9, 3), (4, 1), (12, 11), (6, 2))]
    text = nebula.Text(0, 1, sequences)
    for model in (llama(), t5()):
        ids, logprobs = HuggingFace(model, sequences=3)(text, 5, 2.0)
        row, encodes = 0, model.config.is_encoder_decoder
        for s, prefix in sequences:
            with torch.inference_mode(): # alone, without padding
                z = (model(input_ids=torch.tensor([s[:prefix]]),
                           decoder_input_ids=torch.tensor([[0, *s[prefix:-1]]])).logits[0]
                     if encodes else model(torch.tensor([s])).logits[0][prefix - 1:-1])
            top = torch.log_softmax(z.float() / 2, -1).topk(5, -1)
            n = len(s) - prefix
            assert (logprobs[row:row + n] - top.values).abs().max() < 1e-4, type(model)
            assert (ids[row:row + n] == top.indices).float().mean() > 0.9
            row += n
        assert row == text.rows == len(ids)
        for (s, prefix), answer in zip(sequences, HuggingFace(model, sequences=3).answer(text, 16)):
            z = model.generate(torch.tensor([s[:prefix]]), max_new_tokens=16 - prefix,
                               do_sample=False, pad_token_id=0)[0, 1 if encodes else prefix:]
            end = model.generation_config.eos_token_id
            want = z.tolist()
            want = want[:want.index(end) + 1] if end in want else want
            assert answer == want[:16 - prefix], (type(model), answer, want)
    print("labels of a causal and of an encoder-decoder model are those of the models alone")


def learn(tokenizer):
    r = random.Random(2)
    texts = [[([r.randrange(3, 40) for _ in range(20)], 1) for _ in range(8)] for _ in range(4)]
    model = torch.nn.Sequential(torch.nn.Embedding(V, 32), torch.nn.Linear(32, V))
    optimiser = torch.optim.Adam(model.parameters(), 0.03)
    with nebula.student(lambda step: texts[step % 4], tokenizer) as s:
        for text, labels in s:
            x, y, _ = nebula.pad(text)
            loss = nebula.distill_loss(model(x)[y != -100], y[y != -100], *labels.tensors(),
                                       lambda_=s.lambda_, temperature=s.temperature)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            s.learned(loss.item(), text.rows)
        s.close(loss.item())


def check_align():
    """A byte-level tokenizer of transformers beside pieces with spaces: the same text."""
    import tokenizers
    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.train_from_iterator(["the cat sat on the mat, the café was closed"] * 4,
                            tokenizers.trainers.BpeTrainer(
                                vocab_size=V, special_tokens=["<eos>"],
                                initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>")
    students = Vocabulary([b"the", b" cat", b" sat", b" caf\xc3", b"\xa9", b" w", b"as", None],
                          end=7)
    aligned = Aligned(HuggingFace(llama()), Vocabulary.of(tokenizer), students)
    ids, logprobs = aligned(nebula.Text(0, 1, [([0, 1, 2, 7], 1), ([0, 3, 4, 5, 6, 7], 2)]), 3, 1.0)
    assert len(ids) == 7 and all(len(set(row)) == 3 for row in ids)
    # " cat", " sat" and both ends have equal spans; the pieces of "é" and of " was" have not
    assert aligned.mapped <= 4 and all(row[0] <= 0 and row == sorted(row, reverse=True)
                                       for row in logprobs)
    made = aligned._convert([0, 1, 2, 7], 1)
    assert made.ids == [*tokenizer.encode("the cat sat"), 0] and made.row_of == [0, 1, 2], made
    print("labels of a model with another tokenizer are mapped")


if sys.argv[1] == "check":
    check_loss()
    check_adapters()
    check_align()
    llama().save_pretrained(sys.argv[2])
else:
    learn(sys.argv[2])
