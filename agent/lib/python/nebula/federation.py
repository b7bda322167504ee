# SPDX-License-Identifier: Apache-2.0
"""A training loop in a federation: attach() and Federation."""
from __future__ import annotations

import collections
import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
import weakref
from typing import Any, Callable, Iterator, Mapping, Sequence

from . import _lib, _state, _tensors
from ._later import Later, is_late, number
from ._lib import DONE, INVALID, TRAIN, Error, check, lib
from ._ranks import Ranks


class _Interrupts:
    """Delays Ctrl-C while the library runs, until a hook allows it or the call ends.

    Otherwise Python raises KeyboardInterrupt at the first instruction of the next hook, before the
    hook's `try`. Then ctypes prints and drops the exception, and the library continues.
    """

    def __init__(self) -> None:
        self._handler: Any = None
        self._held: Any = None
        self._allowed = False

    def __enter__(self) -> None:
        handler = signal.getsignal(signal.SIGINT)
        # Python runs handlers in the main thread only, and cannot restore a handler set in C.
        main = threading.current_thread() is threading.main_thread()
        self._handler = handler if callable(handler) and main else None
        if self._handler:
            signal.signal(signal.SIGINT, self._on_signal)

    def __exit__(self, *exc: Any) -> None:
        if self._handler:
            signal.signal(signal.SIGINT, self._handler)
        self._act()

    def _on_signal(self, number: int, frame: Any) -> None:
        self._held = (number, frame)
        if self._allowed:
            self._act()

    def _act(self) -> None:
        held, self._held = self._held, None
        if held:
            self._handler(*held)

    def allow(self, work: Callable[[], Any]) -> None:
        try:
            self._allowed = True
            self._act()
            work()
        finally:
            self._allowed = False


class Federation:
    """The result of attach(). It is a context manager.

    All ranks of the loop make the same calls in the same order; only count() and the properties
    are local. An error on one rank is raised on all. If it is one of this process alone (a tensor
    that has moved, an exception inside `with`), the others raise IO, and all can only close.
    """

    def __init__(self, model: Any, *, agent: str | os.PathLike | None = None,
                 job: str | None = None, timeout: float = 60.0, threads: int = 0,
                 process_group: Any = None, tokens: int | None = None,
                 on_checkpoint: Callable[[str, int], Any] | None = None,
                 buffers: Sequence[str] = (),
                 state: Mapping | Callable[[dict], Any] | None = None):
        pairs = hasattr(model, "named_parameters") or hasattr(model, "items")
        self._model, self._buffers = model if pairs else list(model), buffers
        self._trained_then = self._trained()
        self._frozen_then = self._parameters(trained=False)
        self._where = (agent, job, timeout, threads)
        self._tokens, self._on_checkpoint = tokens, on_checkpoint
        self._interrupts = _Interrupts()
        self._ranks = Ranks(process_group)
        self._open(state)

    # ---- attach

    def _open(self, state: Any) -> None:
        self._handle = ctypes.c_void_p()
        self._state, self._step, self._total, self._closed = TRAIN, 0, 0, False
        self._device: Any = None
        self._error: BaseException | None = None
        self._cause: BaseException | None = None
        self._keep: list[Any] = []
        self._late: collections.deque[Later] = collections.deque()  # the oldest step first
        try:
            slots = self._on_all_ranks(lambda: _tensors.slots_of(self._model, self._buffers))
            self._attach()
            self._on_all_ranks(lambda: self._declare(slots))
            if state is not None:
                self._load(state)
            self._call(lib.nebula_begin, self._handle)
            self._refresh()
        except BaseException:
            # The caller never gets this object, so only this code can close it. While it is open,
            # the job takes no second trainer.
            self._closed = True
            self._give_up()
            raise
        if self._ranks.size == 1:  # several ranks cannot close late: close is collective
            self._close_late = weakref.finalize(self, _abandon, self._handle, os.getpid())

    def _on_all_ranks(self, work: Callable[[], Any]) -> Any:
        """Returns the result of `work`, which makes no collective call. All ranks get its error."""
        result, error = None, None
        try:
            result = work()
        except Exception as e:
            error = e
        self._ranks.agree(error)
        return result

    def _attach(self) -> None:
        agent, job, timeout, threads = self._where
        self._hooks = (
            _lib.SEND(lambda _, data, size, to: self._message(
                lambda: self._ranks.send(data, size, to))),
            _lib.RECV(lambda _, data, size, source: self._message(
                lambda: self._ranks.recv(data, size, source))),
            # Without this hook, training continues while a checkpoint is written (checkpoint.copy).
            _lib.CHECKPOINT(lambda _, folder, step: self._hook(
                lambda: self._interrupts.allow(lambda: self._on_checkpoint(folder.decode(), step))))
            if self._on_checkpoint else _lib.CHECKPOINT(),
            _lib.WAIT(lambda _: self._hook(lambda: self._interrupts.allow(lambda: None))),
            _lib.FIGURES(lambda _, wait, out: self._tell(bool(wait), out)))
        send, recv, checkpoint, wait, figures = self._hooks
        ranks = _lib.Ranks(rank=self._ranks.rank, ranks=self._ranks.size, send=send, recv=recv)
        options = _lib.Options(
            api=_lib.API, agent=os.fsencode(agent) if agent else None,
            job=job.encode() if job else None, timeout_s=timeout, threads=threads,
            ranks=ctypes.pointer(ranks) if self._ranks.size > 1 else None,
            hooks=_lib.Hooks(checkpoint=checkpoint, wait=wait, figures=figures))
        self._call(lib.nebula_attach, ctypes.byref(options), ctypes.byref(self._handle))

    def _exchanged(self) -> list[str]:
        """Names that the job exchanges, as far as they are known before nebula_begin."""
        t, names = _lib.Tensor(), []
        while not lib.nebula_tensor_at(self._handle, len(names), ctypes.byref(t)):
            names.append(t.name.decode())
        return names

    def _declare(self, slots: list[_tensors.Slot]) -> None:
        # The present tensors, and how they were: see _check_memory.
        self._known: list[tuple[Callable[[], Any], int, str, str]] = []
        for slot in _tensors.without_ties(slots, self._exchanged()):
            name = slot.name.encode()
            if len(name) > 255:
                raise Error(INVALID, f"{slot.name}: the name has more than 255 bytes")
            t = _lib.Tensor(name=name, dims=len(slot.shape), dtype=slot.dtype, buffer=slot.buffer,
                            trained=slot.trained)
            t.shape[:len(slot.shape)] = slot.shape
            check(lib.nebula_declare(self._handle, ctypes.byref(t)))
            for placed in slot.placed:
                p = _lib.Piece(name=name, dtype=slot.dtype, place=placed.place,
                               data=placed.address)
                p.offset[:len(slot.shape)] = placed.piece.offset
                p.extent[:len(slot.shape)] = placed.piece.extent
                p.stride[:len(slot.shape)] = placed.strides
                check(lib.nebula_register(self._handle, ctypes.byref(p)))
            self._keep += [m.keep for m in slot.memories]
            for m in slot.memories:
                if m.place == _lib.CUDA and _tensors.is_torch(m.keep):
                    self._device = m.keep.device
            self._known += [(m.now, m.address, _tensors.form(m.now()), slot.name)
                            for m in slot.memories if m.now]

    def _load(self, state: Any) -> None:
        if callable(state):
            wanted = _state.save(self._handle, self._call, read=False)
            state(wanted)
            state = wanted
        _state.load(self._handle, self._call, dict(state))

    # ---- calls

    def _hook(self, work: Callable[[], Any]) -> int:
        try:
            work()
            return 0
        except BaseException as e:  # also Ctrl-C: _call raises it again
            self._error = e
            return 1

    def _tell(self, wait: bool, out: int) -> int:
        late = self._late

        def tell() -> None:
            late[0].tell(_lib.StepStats.from_address(out))
            late.popleft()

        try:
            return self._hook(tell) if late[0].ready(wait) else _lib.NOT_YET
        except BaseException as e:  # the device has failed
            self._error = e
            return 1

    def _message(self, work: Callable[[], Any]) -> int:
        try:
            work()
            return 0
        except BaseException as e:  # the library says which rank has ended
            self._cause = e
            return 1

    def _call(self, function: Any, *args: Any) -> None:
        self._error = self._cause = None
        self._name_stream()
        with self._interrupts:
            status = function(*args)
        if status not in (0, INVALID):
            self._ranks.close()  # ranks that still wait for this one hear of it
        if self._error is not None:
            raise self._error
        try:
            check(status)
        except Error as e:
            raise e from self._cause

    def _name_stream(self) -> None:
        """The library's stream and the loop's present one wait for each other, the host for none.
        Libraries other than PyTorch: the default stream."""
        if self._device is not None and self._handle:
            stream = sys.modules["torch"].cuda.current_stream(self._device)
            lib.nebula_set_stream(self._handle, stream.cuda_stream)

    def _refresh(self) -> None:
        i = self.info()
        self._step, self._total = i["step"], i["steps"]
        self._tokens = self._tokens or i["batch"] * i["seq_len"] * i["accumulate"]

    def _check_memory(self) -> None:
        for now, address, _, name in self._known:
            if now().data_ptr() != address:
                raise Error(INVALID, f"{name} has moved to other memory since attach (model.to(), "
                                     f"a new .data or dtype): attach after such changes")
        # Walking a large model costs milliseconds: other changes are found after some steps.
        late, seldom = any(p.requires_grad for p in self._frozen_then), self._step % 64 == 0
        for now, _, form, name in self._known if seldom else ():
            if _tensors.form(now()) != form:
                raise Error(INVALID, f"{name} is {_tensors.form(now())}, but was {form} at attach: "
                                     "attach after such changes")
        if not late and seldom:
            late = not self._trained().keys() <= self._trained_then.keys()
        if late:
            raise Error(INVALID, "the model trains parameters that it did not train at attach: "
                                 "close, and attach after such changes")

    def _trained(self) -> dict[int, Any]:
        """The trained parameters of a module, by id. Holding them keeps their ids unique."""
        return {id(p): p for p in self._parameters(trained=True)}

    def _parameters(self, trained: bool) -> list[Any]:
        if not hasattr(self._model, "named_parameters"):
            return []
        return [p for _, p in self._model.named_parameters() if p.requires_grad == trained]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Work of this rank inside a call of all ranks. The others hear of its failure at once,
        because their messages to this rank fail."""
        try:
            yield
        except BaseException:
            self._ranks.close()
            raise

    def _give_up(self) -> None:
        self._ranks.close()  # first: with it, nebula_close waits for the other ranks
        if self._handle:
            lib.nebula_close(ctypes.byref(self._handle), math.nan)

    # ---- for users

    @property
    def step_count(self) -> int:
        """Steps made, including those that sync.tune left out."""
        return self._step

    @property
    def total(self) -> int:
        """Steps of the job."""
        return self._total

    @property
    def done(self) -> bool:
        """True if all steps are made and the last exchange is merged (False after a stop)."""
        return self._state == DONE

    @property
    def running(self) -> bool:
        """True while there are steps to make."""
        return self._state == TRAIN and self._step < self._total

    def steps(self) -> Iterator[int]:
        """Yields the numbers of the steps to make; ends when the job is done or stopped."""
        while self.running:
            yield self._step

    def count(self, inputs: Any, targets: Any) -> None:
        """Counts the token ids of this rank's batch (int32 buffers, or tensors of equal size).

        The average of an embedding row then weights each cluster by how often it saw the row. For
        jobs with a built-in model. Error: INVALID, for an id outside the vocabulary.
        """
        a, b = _ids(inputs), _ids(targets)
        check(lib.nebula_count(self._handle, a.tobytes(), b.tobytes(), len(a)))

    def step(self, tokens: int | None = None, loss: Any = math.nan, lr: Any = math.nan,
             grad_norm: Any = math.nan, eval_loss: Any = math.nan) -> None:
        """Reports one optimiser step. Parameters may have changed when it returns. Figures may be
        numbers or tensors of one element.

        The host does not wait for a figure that is a CUDA tensor: the figure is copied when the
        device has it, and counts in a later call. Only tokens are waited for, when an update is
        sent. The tensor may change after the call.

        tokens: of all ranks; the weight of this cluster. Default: the argument of attach(), else
        data.batch x data.seq_len x data.accumulate of the job. loss: nats per token. lr, grad_norm
        (before clipping) and eval_loss (if just measured) go to metrics.jsonl, the page and
        TensorBoard, which omit what is not given. The values of rank 0 count.

        Errors: INVALID: too many tokens; a value that is NaN or infinite (the text names tensor,
        index and rank); a tensor that has moved. AGAIN: close, and attach again. IO: a hook
        failed, or a rank has ended.
        """
        tokens = self._tokens if tokens is None else tokens
        state = ctypes.c_int()
        figures = {"loss": loss, "lr": lr, "grad_norm": grad_norm, "eval_loss": eval_loss}
        with self._alone():
            if not is_late(tokens) and not tokens:
                raise Error(INVALID, "the job has no data.batch and data.seq_len: give tokens to "
                                     "step() or to attach()")
            self._check_memory()
            stats = self._stats({"tokens": tokens, **figures})
        before = lib.nebula_step_count(self._handle)
        try:
            self._call(lib.nebula_step_with, self._handle, ctypes.byref(stats),
                       ctypes.byref(state))
        except Error:
            if stats.later and self._late and lib.nebula_step_count(self._handle) == before:
                self._late.pop()  # the library has not counted the step
            raise
        self._state = state.value
        # With sync.tune: auto a slow cluster leaves out steps.
        self._step = lib.nebula_step_count(self._handle)

    def _stats(self, figures: dict[str, Any]) -> _lib.StepStats:
        late = any(is_late(v) for v in figures.values())
        if late and self._ranks.rank:  # the values of rank 0 count
            figures = {k: 1 if k == "tokens" else math.nan for k in figures}
        elif late:
            self._late.append(Later(figures))
            if not is_late(figures["tokens"]):
                return _lib.StepStats(tokens=int(figures["tokens"]), later=self._late[-1].flags)
            return _lib.StepStats(later=self._late[-1].flags)
        tokens = figures.pop("tokens")
        return _lib.StepStats(tokens=int(tokens), **{k: number(v) for k, v in figures.items()})

    def checkpoint(self) -> None:
        """Writes a checkpoint in addition to those of checkpoint.every_steps, and waits for it."""
        self._call(lib.nebula_checkpoint, self._handle)

    def info(self) -> dict[str, Any]:
        """Figures: rounds, payload_bytes, stall_s, sync_s, digest, dir, … The same on all ranks.
        Collective."""
        i = _lib.Info()
        self._call(lib.nebula_info_get, self._handle, ctypes.byref(i))
        values = ((k, getattr(i, k)) for k, _ in _lib.Info._fields_[1:])
        return {k: (v.decode() if isinstance(v, bytes) else v) for k, v in values}

    def tensors(self) -> list[dict[str, Any]]:
        """What is exchanged: name, shape, group and fragment of each tensor."""
        t, out = _lib.Tensor(), []
        while not lib.nebula_tensor_at(self._handle, len(out), ctypes.byref(t)):
            out.append({"name": t.name.decode(), "shape": tuple(t.shape[:t.dims]),
                        "group": t.group, "fragment": t.fragment})
        return out

    def state_dict(self) -> dict[str, Any]:
        """The exchange's state: sharded flat tensors that torch.distributed.checkpoint saves beside
        model and optimiser. Without PyTorch: arrays of float32."""
        return _state.save(self._handle, self._call)

    def load_state_dict(self, state: Mapping) -> None:
        """Continues from a state of state_dict(): detaches, attaches with it, and writes its
        parameters into the model. A loop that has just started gives `state` to attach() instead.
        """
        self._call(lib.nebula_close, ctypes.byref(self._handle), math.nan)
        self._open(state)

    def close(self, eval_loss: float = math.nan) -> None:
        """Reports the result and closes. Closing twice is allowed.

        Before the job's end it detaches: the agent waits for the next trainer.
        """
        if self._closed:
            return
        self._closed = True
        if self._ranks.size == 1:
            self._close_late.detach()
        try:
            self._call(lib.nebula_close, ctypes.byref(self._handle), float(eval_loss))
        finally:
            self._ranks.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *exc: Any) -> None:
        if exc[0] is None or self._ranks.size == 1:
            self.close()
        elif not self._closed:  # the other ranks may never call close, so this rank closes alone
            self._closed = True
            self._give_up()


def _abandon(handle: ctypes.c_void_p, pid: int) -> None:
    if handle and pid == os.getpid():
        lib.nebula_close(ctypes.byref(handle), math.nan)


def _ids(x: Any) -> Any:
    import array
    if _tensors.is_torch(x):
        x = x.detach().cpu().flatten().tolist()
    elif hasattr(x, "ravel"):
        x = x.ravel().tolist()
    return array.array("i", x)


def attach(model: Any, *, agent: str | os.PathLike | None = None, job: str | None = None,
           timeout: float = 60.0, threads: int = 0, process_group: Any = None,
           tokens: int | None = None, on_checkpoint: Callable[[str, int], Any] | None = None,
           buffers: Sequence[str] = (),
           state: Mapping | Callable[[dict], Any] | None = None) -> Federation:
    """Attaches to the agent and writes the federation's parameters into the model's.

    model: a torch module, or (name, tensor) pairs or a dict: PyTorch (CPU, CUDA, DTensor), NumPy,
    writable buffers of floats, DLPack, or nebula.Parts. float32, bfloat16 or float16; at most 8
    dimensions. Names lose the parts that wrappers add. Tied tensors are exchanged once.
    agent: the agent's home or agent.sock (default $NEBULA_AGENT, then $NEBULA_HOME, then
    ~/.nebula).
    job: name or id (default $NEBULA_JOB).
    timeout: seconds to wait for the agent and the job.
    threads: of each rank, for codec and merge; 0: as the job says, else all processors.
    process_group: the ranks of the loop (default: all of torch.distributed, if initialised).
    tokens: of one step of all ranks, for step() without tokens.
    on_checkpoint(folder, step): called on every rank when a checkpoint was written: save the
    optimiser there.
    buffers: patterns of buffers to exchange, such as "*running_*" (modules: of its buffers; pairs:
    of their names).
    state: of state_dict(), or a function that fills such a dict, as torch.distributed.checkpoint's
    load does.

    Errors: VERSION, NOT_FOUND (no agent, no such job), STATE (another trainer is attached);
    INVALID: a tensor that cannot be exchanged; ranks or clusters whose tensors differ; a trained
    tensor that is neither exchanged nor in a group with `exchange: never`. The text names it.
    """
    return Federation(model, agent=agent, job=job, timeout=timeout, threads=threads,
                      process_group=process_group, tokens=tokens, on_checkpoint=on_checkpoint,
                      buffers=buffers, state=state)
