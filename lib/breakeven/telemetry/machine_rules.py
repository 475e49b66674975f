"""Failures of the machine and what is on it: limits, memory, architecture, ports, driver, compiler, packages, disk."""

from __future__ import annotations

from breakeven.telemetry.rule import CAUSE, ERROR, HOST_MEMORY, SYMPTOM, Rule, rule

MACHINE_RULES: tuple[Rule, ...] = (
    # --- limits, before everything that they keep from being opened or started
    rule(
        "limits",
        CAUSE,
        r"too many open files|errno 24\b|can't start new thread|resource temporarily unavailable",
        "A limit on the process: raise ulimit -n and -u (in a container: --ulimit, --pids-limit).",
    ),
    # --- ended by the kernel or by a signal. Before out-of-memory: "Out of memory: Killed process" is the kernel's line
    rule(
        "killed",
        CAUSE,
        r"oom[-_ ]kill|out of memory: kill|\boom killer\b|oomkilled|oom_reaper|cgroup out of memory",
        "The kernel's out-of-memory killer ended it: " + HOST_MEMORY,
    ),
    rule(
        "shared-memory",
        ERROR,
        r"\bbus error\b|\bsigbus\b|(exit(ed with)?|died with|terminated with)( code)?:? ?-7\b"
        r"|(unable|failed) to (open|map|mmap|allocate|create) shared memory|insufficient shared memory"
        r"|no space left on device.*(/dev/)?shm|/dev/shm.*no space left",
        "Shared memory is too small: start the container with --shm-size 32g or --ipc=host; df -h /dev/shm.",
    ),
    rule(
        "killed",
        ERROR,
        r"(exit(ed)?( with)?( code)?|exitcode|died with( code)?|terminated with( code)?|return ?code)\s*[:=]?\s*"
        r"(-9|137)\b"
        r"|unexpectedly failed with an exit code 9\b"  # 0.4 prints the raw status: 9 is the signal, 256 exit code 1
        r"|due to time limit|\bsigkill\b|killed by signal|signal 9\b|^killed$|: killed$|\bkilled +(python|sglang)",
        "SIGKILL leaves no reason in the log: usually the out-of-memory killer (dmesg -T | grep -i oom; container "
        "limits), else a job scheduler or a person.",
    ),
    rule(
        "killed",
        SYMPTOM,
        r"(exit(ed)?( with)?( code)?|exitcode|died with( code)?|terminated with( code)?|return ?code)\s*[:=]?\s*"
        r"(-11|139|-6|134)\b|unexpectedly failed with an exit code (6|11)\b"
        r"|segmentation fault|segfault|\bsigsegv\b|\bsigabrt\b|fatal python error: aborted|aborted \(core",
        "A native crash, not a Python error: look at the C++ frames above it; check package versions "
        "(torch, sglang-kernel, flashinfer) and rerun with CUDA_LAUNCH_BLOCKING=1.",
    ),
    # --- out of memory
    rule(
        "oom-at-load",
        CAUSE,
        r"not enough memory.*mem-fraction-static|not enough (gpu )?memory (for|to (hold|allocate)) the kv"
        r"|memory pool size is too small|max_running_requests? is zero|state cache is too small"
        r"|max_total_num_tokens ?(<=?|is|=) ?-?0\b|no available memory for the cache blocks"
        r"|free memory on device.*less than desired"
        r"|larger than the (available kv cache memory|maximum number of tokens)",
        "After the weights nothing is left for the KV pool: raise --mem-fraction-static if the GPU is otherwise empty, "
        "else more GPUs (--tp), a smaller or quantised model or drafter.",
    ),
    rule(
        "oom-at-load",
        CAUSE,
        r"memory capacity is unbalanced|gpus may be occupied by other processes",
        "Another process holds memory on some of the GPUs: nvidia-smi shows which; a server killed a moment ago needs "
        "seconds to let go of it.",
    ),
    rule(
        "oom-at-run",
        CAUSE,
        r"(prefill|decode) out of memory|alloc_\w+ runs out of memory|out of kv ?cache (slots|memory)",
        "The KV pool ran out while serving: lower --max-running-requests or the context, "
        "or raise --mem-fraction-static. Speculation needs slots for draft tokens too.",
    ),
    rule(
        "oom-at-*",
        CAUSE,
        r"defaultcpuallocator|can(no|')t allocate memory|std::bad_alloc|(?<!of)\bmemoryerror\b|errno 12\b",
        HOST_MEMORY,
    ),
    rule(
        "oom-at-*",
        CAUSE,
        r"out of memory|outofmemoryerror|cudaerrormemoryallocation|error_out_of_memory|cublas_status_alloc_failed",
        "",
    ),
    # --- architecture
    rule(
        "arch-gate",
        CAUSE,
        r"no supported cuda architectures found"
        r"|all-?reduce fusion.*(requires|only supports|not supported(?! with \w+ parallel))"
        r"|(requires|only supports|not supported).*all-?reduce fusion"
        r"|all-?reduce fusion.*(does not support multi-?node|supports single-?node only)",
        "Fusion reached a kernel that does not exist for this GPU in these versions: see `breakeven gates`; "
        "{fusion_off}.",
    ),
    rule(
        "arch-gate",
        CAUSE,
        r"no kernel image is available|out of resources?: shared memory|outofresources|this kernel only supports sm"
        r"|requires? (an? )?(gpus? (with )?)?sm_? ?[<>=]*\d+|\bsm_? ?\d{2,3}\b.{0,20}not supported"
        r"|(requires?|only supported on|is only supported|only (runs|works) on) .{0,40}"
        r"(\bsm_?\d{2,3}|hopper|blackwell|compute capability)"
        r"|(not supported|unsupported) (on|for) .{0,30}(\bsm_?\d{2,3}|compute capability|this gpu|your gpu)"
        r"|compute capability .{0,40}(not supported|unsupported|too low|or higher)"
        r"|only supports? (nvidia )?(ampere|ada|hopper|blackwell|sm_?\d)|only compiled for sm_?\d"
        r"|not supported (on|for|in) (this|the current|cuda) arch"
        r"|does not support .{0,40}capability \d|no suitable auto backends? found",
        "A kernel of the chosen backend was not built for this GPU: choose another --attention-backend, "
        "--sampling-backend or quantisation, or versions that have it (see `breakeven gates`).",
    ),
    rule(
        "arch-gate",
        SYMPTOM,
        r"^(?!.*cuda error).*illegal instruction|\bsigill\b"
        r"|(exit(ed)?( with)?( code)?|died with( code)?)\s*[:=]?\s*(-4|132)\b",
        "The CPU lacks an instruction set that a package was built for (AVX2, AVX-512, AMX): lscpu, and a build for "
        "this CPU.",
    ),
    # --- ports
    rule(
        "port-in-use",
        CAUSE,
        r"address already in use|eaddrinuse|errno:? 98\b|failed to listen on any local network address"
        r"|port:? ?\d* ?(is )?(already )?(in use|occupied|being used)|port is already in use"
        r"|is used by a process already|_port at \d+ is not available",
        "Another process holds the port: the HTTP port being free is not enough, the distributed ports count too "
        "(--port, --nccl-port, --dist-init-addr); let each server choose its own, ss -ltnp shows the holder.",
    ),
    # --- driver, before package skew: libcuda comes with the driver
    rule(
        "driver",
        CAUSE,
        r"driver initialization failed|libcuda\.so|driver version is insufficient|driver on your system is too old"
        r"|found no nvidia driver"
        r"|no cuda-capable device|no cuda gpus are available|driver/library version mismatch"
        r"|system not yet initialized|devices?\(?s?\)? is/are busy or unavailable|forward compatibility was attempted"
        r"|no accelerator.*(available|found)",
        "torch sees no usable GPU: nvidia-smi on the host and in the container (--gpus all), driver new enough for "
        "this CUDA, CUDA_VISIBLE_DEVICES, fabric manager running on NVSwitch machines.",
    ),
    # --- toolchain of kernels built at run time
    rule(
        "toolchain",
        CAUSE,
        r"could not find nvcc|nvcc(:| was| is)? (command )?not found|no such file or directory: '[^']*nvcc'"
        r"|cuda_home (environment variable )?is not set|:/[\w/.-]*bin/nvcc|unsupported gpu architecture 'compute_"
        r"|ptxas (fatal|error)|nvcc fatal|failed to find c compiler|(gcc|g\+\+|ninja|cc1plus)(:| is)? not found"
        r"|/ld: cannot find -l|--gpu-architecture|no such file or directory: '(ninja|gcc|g\+\+|c\+\+|cc)'"
        r"|fatal error: [\w/.]+\.(h|cuh|hpp): no such file|ninja is required|nvcc compilation failed"
        r"|(nvcc|cuda)\b.{0,40}\btoo old|requires cuda (toolkit )?>?=? ?\d|detected cuda version.*mismatches",
        "A kernel is compiled on first use and the compiler was not found or is too old: FlashInfer looks at "
        "CUDA_HOME, not PATH (and a leading colon in it breaks it); set CUDA_HOME to a toolkit that knows this GPU.",
    ),
    rule(
        "toolchain",
        ERROR,
        r"ninja: build stopped|ninja build failed|error building extension|calledprocesserror.*(ninja|nvcc|gcc|g\+\+)",
        "Compiling a kernel failed; the compiler's own error stands above this line. Check CUDA_HOME, nvcc and gcc "
        "versions; clear the cache of half-built kernels (~/.cache/flashinfer) before the next try.",
    ),
    # --- packages that do not belong together
    rule(
        "package-skew",
        CAUSE,
        r"undefined symbol|version \([^)]*\) does not match|is installed with version .* less than the minimum"
        r"|minimum required version .* is not installed|could not load any common_ops|cannot import name"
        r"|cannot open shared object file|glibc(xx)?_[\d.]+'? not found|compiled using numpy 1"
        r"|multiarray failed to import"
        r"|not compiled with cuda enabled|'_opnamespace' .* has no attribute|operator \w+::\w+ does not exist"
        r"|could not run '\w+::\w+'|does not recognize this architecture|abi mismatch",
        "Packages of different builds: reinstall sglang with the torch, sglang-kernel, flashinfer-python, "
        "flashinfer-cubin and flashinfer-jit-cache versions that it pins (pip check).",
    ),
    rule(
        "package-skew",
        ERROR,
        r"modulenotfounderror: |python[\d.]*: no module named|: command not found|importerror: "
        r"|attributeerror: module '|typeerror: .*(unexpected keyword argument|required positional argument)",
        "A package or program is missing or of another version than this SGLang expects: pip check.",
    ),
    rule(
        "disk-full",
        CAUSE,
        r"no space left on device|enospc|errno 28\b|disk quota exceeded",
        "Free space on the disk that is named (models, ~/.cache, /tmp), or point HF_HOME and TMPDIR elsewhere.",
    ),
    rule(
        "permission",
        CAUSE,
        r"permission denied|permissionerror|errno 13\b",
        "The server's user may not read or write what is named: owner, mount options, container user.",
    ),
)
