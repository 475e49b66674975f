"""Failures of the server itself: settings, collectives, faults, no answer, and what follows on an end."""

from __future__ import annotations

from breakeven.telemetry.rule import CAUSE, CONSEQUENCE, ERROR, SYMPTOM, Rule, rule

SERVER_RULES: tuple[Rule, ...] = (
    # --- wrong settings: known before loading weights, most specific first
    rule(
        "config",
        CAUSE,
        r"error: (unrecognized arguments|argument |the following arguments are required|ambiguous option)"
        r"|invalid choice: ",
        "The command line does not fit this release: flags are renamed between releases "
        "(python -m sglang.launch_server --help).",
    ),
    rule(
        "config",
        CAUSE,
        r"unknown speculative algorithm|invalid speculative algorithm|is not a valid speculativealgorithm",
        "This release has no such speculative algorithm (there is none called MTP: built-in heads are NEXTN).",
    ),
    rule(
        "config",
        CAUSE,
        r"set_eagle3_layers_to_capture",
        "EAGLE3 listens to layers of the target, and this release has no way to do so in this architecture: another "
        "algorithm (EAGLE, STANDALONE, NGRAM), or a release that implements it.",
    ),
    rule(
        "config",
        CAUSE,
        r"\b([sg]et_embed(_and_head)?|hot_token_id)\b|((?<!not )requires?|must|need).{0,40}draft[-_]model[-_]path"
        r"|draft_model_path must",
        "EAGLE3 needs --speculative-draft-model-path unless the architecture has built-in MTP heads, and a draft whose "
        "architecture is an EAGLE3 one.",
    ),
    rule(
        "config",
        CAUSE,
        r"supports? (only )?(speculative_eagle_)?top-?k ?=+ ?1\b|top-?k ?> ?1.{0,60}(not support|n't support)"
        r"|(not|n't) support.{0,40}top-?k ?> ?1|requires? (--)?speculative[-_]eagle[-_]topk[ =]+1"
        r"|requires top-?k ?=+ ?1",
        "This backend drafts chains only: --speculative-eagle-topk 1 (draft tokens become steps + 1), or another "
        "--attention-backend.",
    ),
    rule(
        "config",
        CAUSE,
        r"share (one|the same|a) ?(same )?vocab|different token-to-id|(draft|target|tokenizer).*vocab\w*.*"
        r"(mismatch|differ|not match|n't match|!=|identical)|vocab\w*.*(mismatch|differ|not match|!=).*(draft|target)",
        "Draft and target need the same vocabulary, token by token: equal sizes are not enough. "
        "Take a draft of the same family.",
    ),
    rule(
        "config",
        CAUSE,
        r"greater than the derived context|exceeds? the (model's|derived|maximum) context.*(sglang_allow|--context)",
        "--context-length is more than the model (or the draft) was made for: lower it, or take a draft with a longer "
        "context.",
    ),
    rule(
        "config",
        CAUSE,
        r"not a local folder and is not a valid model|repositorynotfound|repository not found|gatedrepo|gated repo"
        r"|401 client error|404 client error|hfvalidationerror|repo id must"
        r"|does not appear to have a file named|can't load (the )?(config|tokenizer|image|feature|model)"
        r"|^(?=.*(huggingface\.co|hf-mirror\.com|modelscope\.c)).*(max retries|timed? ?out|connect(ion)?error)"
        r"|couldn't connect to 'https?://|couldn't connect to the hub|localentrynotfound|offlinemodeisenabled"
        r"|cannot find (any )?(model|weights|the (requested )?files)|no such file or directory: '[^']*(config\.json|"
        r"safetensors|tokenizer|\.gguf|\.bin)[^']*'|(model|draft|tokenizer)[ _]path.*(not exist|not found)"
        r"|no \.?safetensors|unrecognized model in|error no file named",
        "The model or draft path is wrong, incomplete, gated or not downloaded: check it on the host that serves; "
        "offline hosts need the files in HF_HOME beforehand; gated ones a token in the environment.",
    ),
    rule(
        "config",
        CAUSE,
        r"safetensorerror|error while deserializing header|metadataincompletebuffer|invalid header|"
        r"pytorchstreamreader failed|invalid magic number",
        "A weight file is damaged or cut off (interrupted download, full disk, git-lfs pointer): fetch it again.",
    ),
    rule(
        "config",
        CAUSE,
        r"model architectures? .*not supported|architectures? .*are not supported for now",
        "This release does not know the model's architecture: upgrade SGLang, or check the architectures entry.",
    ),
    rule(
        "config",
        CAUSE,
        r"invalid device ordinal|(not|n't) divisible by|must be divisible by|not enough gpus"
        r"|(tp|pp|dp)[_ -]size.*(exceed|greater|more) (than )?.*gpu",
        "The parallel sizes do not fit the GPUs or the model's heads: check --tp against nvidia-smi -L and the config.",
    ),
    rule(
        "config",
        CAUSE,
        r"cannot assign requested address|errno:? 99\b|name or service not known|temporary failure in name resolution",
        "The address does not belong to this host or can't be resolved: check --host and --dist-init-addr.",
    ),
    # --- NCCL and torch.distributed: the failing call; the first NCCL WARN of any rank replaces it as the deciding line
    rule(
        "nccl*",
        CONSEQUENCE,
        r"remote process exited|connection (reset|closed|refused) by (remote )?peer|connection closed by remote"
        r"|ncclremoteerror|broken pipe.*tcpstore|tcpstore.*broken pipe",
        "This rank lost another one: the cause is in the log of the rank that went first.",
    ),
    rule(
        "nccl*",
        ERROR,
        r"previous error during capture|cudaerrorstreamcaptureinvalidated|nccl error"
        r"|nccl(unhandledcuda|system|internal)error"
        r"|distbackenderror|unhandled (cuda|system) error|ncclinvalidusage|custom allreduce.*(failed|error)",
        "",
    ),
    rule(
        "nccl*",
        ERROR,
        r"watchdog caught collective operation timeout|heartbeat.{0,40}timed? ?out"
        r"|collective.{0,40}timed? ?out|diststoreerror"
        r"|timed out after \d+ ?(seconds|ms).{0,40}(waiting for|clients|store)|gloo.{0,60}timed? ?out"
        r"|gloo connectfullmesh failed|rendezvous.{0,40}(failed|timed? ?out)"
        r"|distnetworkerror: .*(failed to connect|connection (refused|reset)|timed? ?out)",
        "A rank did not arrive: look for the rank that is behind (its log, py-spy dump), then at the network "
        "(NCCL_SOCKET_IFNAME, --dist-init-addr, firewall).",
    ),
    # --- the device caught the server reading where nothing is
    rule(
        "fault*",
        ERROR,
        r"illegal memory access|cudaerrorillegaladdress|device-side assert|index out of bounds|ind < ind_dim_size"
        r"|indexselect\w*.*assert|misaligned address|cuda_error_illegal_address",
        "When speculating, first compare prompt + output with the smaller of target and draft context length "
        "(max_position_embeddings): beyond the draft's it reads out of bounds. If they fit: CUDA_LAUNCH_BLOCKING=1 and "
        "a run without graphs ({graph_off}) show the kernel.",
    ),
    # --- no answer
    rule(
        "hang",
        ERROR,
        r"watchdog timeout(?!.*soft=true)|no progress for \d+|event loop (appears|is) stuck|loop appears stuck",
        "The scheduler made no step for the watchdog's time: py-spy dump of every rank, nvidia-smi (100 % and no "
        "progress is a stuck collective); --watchdog-timeout only if a single step is really that long.",
    ),
    rule(
        "not-ready",
        SYMPTOM,
        r"health check failed|couldn't get a response from detokenizer|warm-?up.{0,40}(timed? ?out|timeout)"
        r"|read timed out|readtimeout",
        "/health may answer 200 while the scheduler is dead or stuck: ready means process alive, one real generation "
        "and progress. Look at the scheduler's log and py-spy dump.",
    ),
    # --- settings again: errors that name a flag, less specific than all above
    rule(
        "config",
        ERROR,
        r"validation errors? for \w*(config|args)\b|(valueerror|assertionerror|notimplementederror): .*"
        r"(--[a-z][a-z0-9]*-|--(tp|dp|pp|ep)\b|\bspeculative_\w|not (supported|compatible) with \w+ parallel"
        r"|speculative decoding (is |does )?(currently )?not support|only supports [tpd]p_size ?=)",
        "SGLang refuses this combination of settings; the line says which.",
    ),
    rule(
        "config",
        ERROR,
        r"size mismatch for|(assertionerror|valueerror|runtimeerror): .*(shape|size of tensor).*(mismatch|must match)"
        r"|mat1 and mat2 shapes cannot be multiplied",
        "Weights and configuration do not fit each other: for a drafter, check that it was made for this target "
        "(hidden size, vocabulary, EAGLE against EAGLE3).",
    ),
    # --- consequences
    rule(
        "killed",
        CONSEQUENCE,
        r"\bsigterm\b|signal 15\b",
        "Someone asked it to stop while it was starting: a job's limit, a container stop, a launcher's timeout.",
    ),
    rule(
        "exit*",
        CONSEQUENCE,
        r"scheduler (process )?(is dead|died|has died|terminated)"
        r"|(exited|died|crashed|terminated) with (exit )?(code )?-?\d+"
        r"|initialization failed\. |exit code:? ?-?[1-9]\d*|sigquit received|received sigquit|server (process )?exited"
        r"|server launch failed|other ranks that didn't finish loading",
        "A process ended before the server was ready and gave no reason: run the same command in the foreground, look "
        "at the other ranks' logs and dmesg; a launcher should poll the exit status instead of waiting its timeout.",
    ),
)

_ARGUMENTS = r"srt/(server_args\.py|arg_groups/)"
FRAME_RULES: tuple[Rule, ...] = (
    # tried on a traceback's last frame with its source and its exception, where the exception's own text fits no rule
    rule(
        "config",
        ERROR,
        _ARGUMENTS + r".*(speculative_eagle_topk is none|in _handle_(speculative_decoding|eagle_family)\b)"
        r".*\bassertionerror$",
        "Give --speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens together, or none.",
    ),
    rule(
        "config",
        ERROR,
        _ARGUMENTS,
        "SGLang's check of its arguments refuses these settings: the line, and the frame above it, say which.",
    ),
)
