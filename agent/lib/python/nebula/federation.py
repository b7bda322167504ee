# SPDX-License-Identifier: Apache-2.0
"""Federates a Python training loop through the Nebula agent of its cluster.

No build step, no packages.

    import nebula
    fed = nebula.attach(model.named_parameters())   # loads the federation's parameters
    for step in fed.steps():                        # continues after the newest checkpoint
        loss = train_one_step()                     # yours: forward, backward, optimizer.step()
        fed.step(tokens=batch * seq_len, loss=float(loss))   # exchanges when an exchange is due
    fed.close(eval_loss)

Tensors: PyTorch (CPU or CUDA; float32 or bfloat16; FSDP2's DTensor, sharded by rows), NumPy, or
anything with a writable buffer of floats (array.array). With torch.distributed initialised, all
ranks make the same calls: rank 0 talks to the agent; the others receive what was merged (DDP), or
send their rows and get them back (DTensor).

The library libnebula.so.1 is $NEBULA_LIBRARY if that is set. Otherwise this file looks for it next
to itself, in build/ of the source folder (../../../build), two folders up (lib/ of an
installation), and where the system looks. libnebula.h lists the errors of each call; they are
raised as nebula.Error.
"""
import ctypes
import datetime
import math
import os
import pathlib
import signal
import threading
import weakref

API = 1
F32, BF16 = 0, 1
HOST, CUDA = 0, 1
TRAIN, DONE, STOP = 0, 1, 2
AGAIN = 8  # Error.status


class Error(RuntimeError):
    """A call of libnebula failed; .status is its enum nebula_status.

    AGAIN: this cluster has to continue with another state, for example after a long absence:
    close, attach again, and continue from .step_count.
    """

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


_MOVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int32,
                         ctypes.c_int32)
_CHECKPOINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("api", ctypes.c_int), ("agent", ctypes.c_char_p),
                ("job", ctypes.c_char_p), ("timeout_s", ctypes.c_double),
                ("threads", ctypes.c_int), ("user", ctypes.c_void_p), ("move", _MOVE),
                ("checkpoint", _CHECKPOINT), ("wait", _WAIT)]


class _StepStats(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("tokens", ctypes.c_uint64),
                *((k, ctypes.c_double) for k in ("loss", "lr", "grad_norm", "eval_loss"))]


class _Tensor(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char * 96), ("rows", ctypes.c_int32),
                ("cols", ctypes.c_int32), ("fragment", ctypes.c_int32)]


class _Info(ctypes.Structure):
    _fields_ = ([("size", ctypes.c_size_t)] +
                [(k, ctypes.c_int32) for k in ("tensors", "fragments", "cluster", "clusters",
                                               "vocab", "seq_len", "batch", "accumulate")] +
                [("step", ctypes.c_int64), ("steps", ctypes.c_int64), ("rounds", ctypes.c_uint64),
                 ("payload_bytes", ctypes.c_uint64), ("stall_s", ctypes.c_double),
                 ("sync_s", ctypes.c_double), ("others", ctypes.c_int),
                 ("dir", ctypes.c_char * 1024), ("corpus", ctypes.c_char * 1024),
                 ("digest", ctypes.c_char * 33)])


def _load():
    here = pathlib.Path(__file__).resolve().parents[1]
    folders = (here, here.parents[2] / "build", here.parents[1])
    places = [os.environ.get("NEBULA_LIBRARY")] if os.environ.get("NEBULA_LIBRARY") else [
        *(str(p / "libnebula.so.1") for p in folders), "libnebula.so.1"]
    for place in places:
        if "/" not in place or os.path.exists(place):
            try:
                lib = ctypes.CDLL(place)
                break
            except OSError as e:
                why = e
    else:
        raise ImportError(f"libnebula.so.1 not found (looked at {', '.join(places)}): "
                          f"set NEBULA_LIBRARY; {locals().get('why', '')}")
    lib.nebula_last_error.restype = lib.nebula_version.restype = ctypes.c_char_p
    lib.nebula_attach.argtypes = [ctypes.POINTER(_Options), ctypes.POINTER(ctypes.c_void_p)]
    lib.nebula_tensor_at.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(_Tensor)]
    lib.nebula_register.argtypes = [ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_int32] * 3,
                                    ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    lib.nebula_begin.argtypes = lib.nebula_checkpoint.argtypes = [ctypes.c_void_p]
    lib.nebula_count.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    lib.nebula_step_with.argtypes = [ctypes.c_void_p, ctypes.POINTER(_StepStats),
                                     ctypes.POINTER(ctypes.c_int)]
    lib.nebula_step_count.argtypes = [ctypes.c_void_p]
    lib.nebula_step_count.restype = ctypes.c_int64
    lib.nebula_info_get.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Info)]
    lib.nebula_close.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_double]
    api = ctypes.c_int()
    version = lib.nebula_version(ctypes.byref(api))
    if api.value != API:
        raise ImportError(f"nebula.py has API {API}, but libnebula {version.decode()} has API "
                          f"{api.value}: use both from one version")
    return lib


_lib = _load()


def version():
    return _lib.nebula_version(None).decode()


def _check(status):
    if status:
        raise Error(status, _lib.nebula_last_error().decode(errors="replace"))


# ---- tensors of all kinds ----


def _is_torch(t):
    return type(t).__module__.split(".")[0] == "torch" or hasattr(t, "data_ptr")


def _plain_name(name):
    """Removes what wrappers add to names (DDP, FSDP, torch.compile, activation checkpointing)."""
    for word in ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."):
        name = name.replace(word, "")
    return name.removeprefix("module.")


def _memory(name, t):
    """(rows, cols, dtype, place, address, object to keep alive) of a dense tensor."""
    if _is_torch(t):
        import torch
        t = t.detach()
        if not t.is_contiguous():
            raise Error(1, f"{name}: not contiguous; pass model parameters, not views of them")
        kinds = {torch.float32: F32, torch.bfloat16: BF16}
        if t.dtype not in kinds:
            raise Error(1, f"{name}: {t.dtype}; only float32 and bfloat16 can be exchanged")
        shape = tuple(t.shape)
        place, address, kind, keep = CUDA if t.is_cuda else HOST, t.data_ptr(), kinds[t.dtype], t
    else:
        view = memoryview(t)
        if view.readonly or view.format != "f" or not view.c_contiguous:
            raise Error(1, f"{name}: needs a writable contiguous buffer of float32, not one of "
                           f"format {view.format}")
        shape = view.shape
        keep = (ctypes.c_char * view.nbytes).from_buffer(t)
        place, address, kind = HOST, ctypes.addressof(keep), F32
    if len(shape) > 2:
        raise Error(1, f"{name}: shape {shape}; a tensor must have one or two dimensions")
    rows, cols = (1, shape[0]) if len(shape) == 1 else shape
    return rows, cols, kind, place, address, keep


class _Ranks:
    """Messages between the ranks of torch.distributed; does nothing with one process."""

    def __init__(self):
        self.dist, self.rank, self.size, self.messages = None, 0, 1, None
        try:
            import sys
            if "torch" in sys.modules:
                import torch.distributed as dist
                if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
                    self.dist, self.rank, self.size = dist, dist.get_rank(), dist.get_world_size()
                    # A message may wait for other clusters; the loop's own group would time out
                    # after minutes.
                    self.messages = dist.new_group(backend="gloo",
                                                   timeout=datetime.timedelta(days=30))
        except ImportError:
            pass

    def close(self):
        """Destroys the group of messages, and so its threads, on every rank.

        At the interpreter's exit such a thread could still hold a tensor of its last message, and
        would wait for a lock that is never released.
        """
        messages, self.messages = self.messages, None
        if messages is not None and self.dist.is_initialized():  # else all are destroyed
            self.dist.destroy_process_group(messages)
        self.dist = None

    def tell(self, what):
        """Rank 0 sends `what` to the others, which receive and return it."""
        if self.dist:
            box = [what]
            self.dist.broadcast_object_list(box, src=0, group=self.messages)
            return box[0]
        return what


class _Slot:
    """One tensor of the model, on this rank."""

    def __init__(self, name, tensor, ranks):
        self.name, self.sharded, self.whole = name, False, None
        # NumPy and buffers have no such flag: they count as trained
        self.trained = getattr(tensor, "requires_grad", True)
        local = tensor.detach() if _is_torch(tensor) else tensor
        if hasattr(local, "to_local"):  # DTensor
            places = [p for p in local.placements if not p.is_replicate()]
            if any(not p.is_shard() or p.dim != 0 for p in places) or len(places) > 1:
                raise Error(1, f"{name}: placements {local.placements}; only shards by rows "
                               f"(dim 0) on one mesh axis can be exchanged")
            self.sharded, self.shape, local = bool(places), tuple(local.shape), local.to_local()
        self.local = local
        if self.sharded:
            import torch
            dist = ranks.dist
            if local.dim() > 2:
                raise Error(1, f"{name}: {local.dim()} dimensions; a tensor must have one or two")
            sizes = [None] * ranks.size
            dist.all_gather_object(sizes, local.shape[0], group=ranks.messages)
            self.sizes = sizes
            self.row0 = sum(sizes[:ranks.rank])
            if sum(sizes) != self.shape[0]:
                raise Error(1, f"{name}: its shards have {sum(sizes)} of {self.shape[0]} rows; "
                               f"is it sharded over all ranks?")
            if ranks.rank == 0:
                self.whole = torch.empty(self.shape, dtype=local.dtype, device=local.device)

    def memory(self):
        """A key that is equal for two names of the same memory (tied tensors)."""
        if _is_torch(self.local):
            return self.local.device, self.local.data_ptr(), tuple(self.local.shape)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.local))
        return "host", address, memoryview(self.local).shape

    def of_rank_0(self):
        return self.whole if self.sharded else self.local

    def gather(self, ranks):
        if not self.sharded:
            return  # replicas are equal: rank 0 reads its own
        if ranks.rank == 0:
            at = 0
            for r, n in enumerate(self.sizes):
                part = self.whole[at:at + n]
                if r == 0:
                    part.copy_(self.local)
                elif n:
                    ranks.dist.recv(part, src=r)
                at += n
        elif self.local.shape[0]:
            ranks.dist.send(self.local.contiguous(), dst=0)

    def scatter(self, ranks):
        if not self.sharded:
            if ranks.dist:
                ranks.dist.broadcast(self.local, src=0)
            return
        if ranks.rank == 0:
            at = 0
            for r, n in enumerate(self.sizes):
                part = self.whole[at:at + n]
                if r == 0:
                    self.local.copy_(part)
                elif n:
                    ranks.dist.send(part, dst=r)
                at += n
        elif self.local.shape[0]:
            ranks.dist.recv(self.local, src=0)


# ---- the federation ----


class _Interrupts:
    """Holds Ctrl-C while the library runs, until a hook allows it or the call ends.

    Otherwise Python raises KeyboardInterrupt at the first instruction of the next hook, before its
    try: ctypes prints and drops the exception, and the library continues.
    """

    def __init__(self):
        self._handler, self._held, self._allowed = None, None, False

    def __enter__(self):
        handler = signal.getsignal(signal.SIGINT)
        # Python runs handlers in the main thread only, and cannot restore a handler set in C.
        main = threading.current_thread() is threading.main_thread()
        self._handler = handler if callable(handler) and main else None
        if self._handler:
            signal.signal(signal.SIGINT, self._on_signal)

    def __exit__(self, *exc):
        if self._handler:
            signal.signal(signal.SIGINT, self._handler)
        self._act()

    def _on_signal(self, number, frame):
        self._held = (number, frame)
        if self._allowed:
            self._act()

    def _act(self):
        held, self._held = self._held, None
        if held:
            self._handler(*held)

    def allow(self, work):
        try:
            self._allowed = True
            self._act()
            work()
        finally:
            self._allowed = False


class Federation:
    """The result of attach(). .step_count of .total steps are made; .info() has figures."""

    def __init__(self, named, agent, job, timeout, threads, on_checkpoint):
        self._ranks = _Ranks()
        self._handle = ctypes.c_void_p()
        self._state, self._error, self._on_checkpoint = TRAIN, None, on_checkpoint
        self._interrupts, self._closed = _Interrupts(), False
        pairs = named.items() if hasattr(named, "items") else named
        items = [(_plain_name(k), t) for k, t in pairs]
        self._slots, self._keep, self._order = {}, [], []
        for name, tensor in items:
            if name in self._slots:
                raise Error(1, f"two tensors have the name {name}")
            self._slots[name] = _Slot(name, tensor, self._ranks)
        # Without this hook, training continues while a checkpoint is written (checkpoint.copy).
        checkpoint = _CHECKPOINT(self._checkpoint_hook) if on_checkpoint else _CHECKPOINT()
        self._hooks = (_MOVE(self._move), checkpoint,
                       _WAIT(lambda _user: self._hook(lambda: None)))
        self._lead(lambda: self._start(agent, job, timeout, threads))

    # Rank 0 runs `work`; its hooks may call the other ranks, which serve until it ends.
    def _lead(self, work):
        if self._ranks.rank == 0:
            error = None
            try:
                work()
            except BaseException as e:  # the other ranks must learn of it
                error = e
            end = ("end", self._state, self._step, self._total, None if error is None else
                   (getattr(error, "status", 7), str(error) or type(error).__name__))
            self._ranks.tell(end)
            if error is not None:
                raise error
            return
        while True:
            what = self._ranks.tell(None)
            if what[0] == "end":
                _, self._state, self._step, self._total, error = what
                if error:
                    raise Error(*error)
                return
            self._serve(what)

    _step = _total = 0

    def _serve(self, what):
        if what[0] == "checkpoint":
            self._on_checkpoint(what[1], what[2])
            return
        for name in what[1]:
            slot = self._slots[name]
            (slot.scatter if what[0] == "scatter" else slot.gather)(self._ranks)

    def _hook(self, work):
        try:
            self._interrupts.allow(work)
            return 0
        except BaseException as e:  # including Ctrl-C: _call raises it again
            self._error = e
            return 1

    def _on_all(self, *what):
        self._ranks.tell(what)
        self._serve(what)

    def _move(self, _user, write, first, n):
        what = "scatter" if write else "gather"
        return self._hook(lambda: self._ranks.dist and
                          self._on_all(what, self._order[first:first + n]))

    def _checkpoint_hook(self, _user, folder, step):
        return self._hook(lambda: self._on_all("checkpoint", folder.decode(), step))

    def _call(self, function, *args):
        self._error = None
        with self._interrupts:
            status = function(*args)
        if self._error is not None:
            raise self._error
        _check(status)

    def _start(self, agent, job, timeout, threads):
        o = _Options(size=ctypes.sizeof(_Options), api=API,
                     agent=os.fsencode(agent) if agent else None,
                     job=job.encode() if job else None, timeout_s=timeout, threads=threads,
                     move=self._hooks[0], checkpoint=self._hooks[1], wait=self._hooks[2])
        try:
            self._call(_lib.nebula_attach, ctypes.byref(o), ctypes.byref(self._handle))
            self._begin()
        except BaseException:
            # The caller never gets this object to close it, and the job takes no second trainer
            # while it is open.
            if self._handle:
                _lib.nebula_close(ctypes.byref(self._handle), math.nan)
            raise
        self._close_late = weakref.finalize(self, _abandon, self._handle, os.getpid())

    def _begin(self):
        t = _Tensor(size=ctypes.sizeof(_Tensor))
        for i in range(self.info()["tensors"]):
            self._call(_lib.nebula_tensor_at, self._handle, i, ctypes.byref(t))
            self._order.append(t.name.decode())
        missing = [k for k in self._order if k not in self._slots]
        if missing:
            raise Error(1, f"the model has no parameter {missing[0]} ({len(missing)} of "
                           f"{len(self._order)} are missing); "
                           f"it has {', '.join(list(self._slots)[:3])}, …")
        exchanged = {self._slots[k].memory() for k in self._order}
        apart = [k for k, s in self._slots.items()
                 if s.trained and k not in self._order and s.memory() not in exchanged]
        if apart:
            more = f" and {len(apart) - 8} more" if len(apart) > 8 else ""
            raise Error(1, f"the model trains tensors that the job does not exchange: "
                           f"{', '.join(apart[:8])}{more}. Each cluster would keep its own, and "
                           f"the models would differ. Freeze them (requires_grad_(False)), or use "
                           f"a job and a model with the same tensors")
        for name in self._order:
            rows, cols, dtype, place, address, keep = _memory(name, self._slots[name].of_rank_0())
            self._keep.append(keep)
            self._call(_lib.nebula_register, self._handle, name.encode(), 0, rows, cols, dtype,
                       place, address)
        self._call(_lib.nebula_begin, self._handle)
        self._refresh()

    def _refresh(self):
        i = self.info()
        self._step, self._total = i["step"], i["steps"]

    # ---- for users

    @property
    def step_count(self):
        return self._step

    @property
    def total(self):
        return self._total

    @property
    def done(self):
        """True if all steps are made and the last exchange is merged (False after a stop)."""
        return self._state == DONE

    def steps(self):
        """Yields the numbers of the steps to make; ends when the job is done or stopped."""
        while self._state == TRAIN and self._step < self._total:
            yield self._step

    def count(self, inputs, targets):
        """Counts the token ids of a batch (int32 buffers or tensors).

        Clusters then average rows of the embedding by how often each of them saw a row. With
        several ranks, every rank passes its own ids.
        """
        a, b = (_ids(x) for x in (inputs, targets))
        if self._ranks.dist:
            parts = [None] * self._ranks.size if self._ranks.rank == 0 else None
            self._ranks.dist.gather_object((a.tobytes(), b.tobytes()), parts, dst=0,
                                           group=self._ranks.messages)
        else:
            parts = [(a.tobytes(), b.tobytes())]

        def work():
            for x, y in parts:
                _check(_lib.nebula_count(self._handle, x, y, len(x) // 4))
        self._lead(work)

    def step(self, tokens, loss=math.nan, lr=math.nan, grad_norm=math.nan, eval_loss=math.nan):
        """Reports one optimiser step over `tokens` tokens (of all ranks).

        Parameters may have changed when it returns. lr, grad_norm (before clipping) and eval_loss
        (if just measured) go to metrics.jsonl, the page and TensorBoard, which omit what is not
        given.
        """
        def work():
            state = ctypes.c_int()
            stats = _StepStats(ctypes.sizeof(_StepStats), int(tokens), float(loss), float(lr),
                               float(grad_norm), float(eval_loss))
            self._call(_lib.nebula_step_with, self._handle, ctypes.byref(stats),
                       ctypes.byref(state))
            self._state = state.value
            # With sync.tune: auto a slow cluster leaves out steps.
            self._step = _lib.nebula_step_count(self._handle)
        self._lead(work)

    def checkpoint(self):
        self._lead(lambda: self._call(_lib.nebula_checkpoint, self._handle))

    def info(self):
        """Rank 0: figures as a dict: rounds, payload_bytes, stall_s, sync_s, digest, dir, …"""
        i = _Info(size=ctypes.sizeof(_Info))
        _check(_lib.nebula_info_get(self._handle, ctypes.byref(i)))
        values = ((k, getattr(i, k)) for k, _ in _Info._fields_[1:])
        return {k: (v.decode() if isinstance(v, bytes) else v) for k, v in values}

    def close(self, eval_loss=math.nan):
        """Reports the result and closes.

        Before the job's end it detaches: the agent waits for the next trainer.
        """
        if self._closed:
            return
        self._closed = True

        def work():
            self._close_late.detach()
            self._call(_lib.nebula_close, ctypes.byref(self._handle), float(eval_loss))
        try:
            self._lead(work)
        finally:
            self._ranks.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if exc[0] is None or self._ranks.size == 1:
            self.close()


def _abandon(handle, pid):
    if handle and pid == os.getpid():
        _lib.nebula_close(ctypes.byref(handle), math.nan)


def _ids(x):
    import array
    if _is_torch(x):
        x = x.detach().cpu().flatten().tolist()
    elif hasattr(x, "ravel"):
        x = x.ravel().tolist()
    return array.array("i", x)


def attach(named, agent=None, job=None, timeout=60.0, threads=0, on_checkpoint=None):
    """Attaches to the agent and loads the federation's parameters into the tensors.

    named: (name, tensor) pairs or a dict, such as model.named_parameters(); names as in the Llama
    and Qwen2 layouts of Hugging Face. A frozen tensor (requires_grad False) that the job does not
    exchange is ignored. Error: a trained tensor is neither exchanged nor tied to one that is.
    agent: the agent's home or agent.sock (default $NEBULA_AGENT, then $NEBULA_HOME, then
    ~/.nebula).
    job: name or id (default $NEBULA_JOB).
    timeout: seconds to wait for the agent and the job.
    threads: for codec and merge; 0: as the job says, else all processors.
    on_checkpoint(folder, step): called on every rank when a checkpoint was written: save the
    optimiser there.
    """
    return Federation(named, agent, job, timeout, threads, on_checkpoint)
