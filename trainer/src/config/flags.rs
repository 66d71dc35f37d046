//! The one table of settings: each is a flag `--name` of the command and a key `name` of the file.

/// One setting. The command builds its flags from this, the file reader its keys, so that a name exists once.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The name, as flag and as key.
    pub name: &'static str,
    /// A second name, or none.
    pub alias: Option<&'static str>,
    /// What stands for the value in the help text; `None` for a switch, whose value is `true` or `false`.
    pub value_name: Option<&'static str>,
    /// One line of help.
    pub help: &'static str,
    /// The default, as the help shows it.
    pub default: &'static str,
    /// The allowed values where they are a list; empty else.
    pub choices: &'static [&'static str],
    /// How it is treated.
    pub status: Status,
}

/// What a setting can do today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Part of the numbers of a run: fixed when the run is resumed.
    Fixed,
    /// May change when a run is resumed.
    Free,
}

const fn flag(name: &'static str, value_name: &'static str, help: &'static str, default: &'static str) -> Flag {
    Flag { name, alias: None, value_name: Some(value_name), help, default, choices: &[], status: Status::Fixed }
}

const fn choice(
    name: &'static str,
    choices: &'static [&'static str],
    help: &'static str,
    default: &'static str,
) -> Flag {
    Flag { name, alias: None, value_name: Some("NAME"), help, default, choices, status: Status::Fixed }
}

impl Flag {
    const fn free(mut self) -> Self {
        self.status = Status::Free;
        self
    }

    const fn switch(mut self) -> Self {
        self.value_name = None;
        self.choices = &["true", "false"];
        self
    }

    const fn alias(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
        self
    }

    /// Whether the command takes it without a value.
    pub const fn is_switch(&self) -> bool {
        self.value_name.is_none()
    }

    /// The entry of a name or a second name.
    pub fn find(name: &str) -> Option<&'static Flag> {
        FLAGS.iter().find(|flag| flag.name == name || flag.alias == Some(name))
    }
}

/// Every setting, in the order of the help text.
pub static FLAGS: &[Flag] = &[
    flag(
        "data",
        "FILE|DIR",
        "Training data: a text file, a folder of them, or token ids (.bin of nanoGPT or llm.c, .bin and .idx of Megatron); \
         several by weight as in 0.7:web.bin,0.3:books/",
        "built-in text",
    ),
    flag("out", "DIR", "Folder for the log, the checkpoints and the events", "out").free(),
    flag("resume", "DIR", "Go on with the run of this folder, from its latest checkpoint or the one named", "").free(),
    flag(
        "weights",
        "FILE|DIR",
        "Begin with these weights: a safetensors file with Hugging Face's names, or the folder of a model or checkpoint",
        "random ones",
    ),
    choice("model", &["gpt2", "llama"], "Family of the model", "gpt2"),
    flag("layers", "N", "Layers", "4"),
    flag("channels", "N", "Channels of the residual stream", "128"),
    flag("heads", "N", "Query heads of each attention", "4"),
    flag("kv-heads", "N", "Key and value heads of each attention", "as heads"),
    flag("experts", "N", "Experts of a layer; 0 is a dense model", "0"),
    flag("top-k", "N", "Experts that a token goes to", "2"),
    flag("expert-hidden", "N", "Width inside an expert", "as the MLP of a dense model"),
    flag("shared-expert", "N", "Width of an expert that every token goes through besides; 0 is none", "0"),
    choice("router", &["softmax", "sigmoid"], "What the router makes scores with", "softmax"),
    flag("capacity", "X", "Times its even share of a sequence that an expert takes at most; 0 drops no token", "0"),
    flag("aux-loss", "X", "Weight of the loss that keeps experts evenly used; it is not in the loss reported", "0.01"),
    flag(
        "bias-rate",
        "X",
        "Step of the router's biases, which keep experts evenly used without a loss; 0 has none",
        "0",
    ),
    flag("hidden", "N", "Width inside the MLP", "4 x channels; llama: 8/3 of them, in 64s"),
    flag("tied", "", "Whether the output projection is the token embedding", "true").switch(),
    flag("context", "N", "Tokens of a sequence", "64"),
    choice(
        "packing",
        &["windows", "documents"],
        "Whether the tokens of a sequence see all before them, or those of their own document alone",
        "windows",
    ),
    flag("end-token", "N", "Token that ends a document, besides what the data says", ""),
    flag("vocab", "N", "Entries of the vocabulary; text is bytes, so 256", "256"),
    flag("steps", "N", "Optimizer steps of the whole run", "500").free(),
    flag("batch", "N", "Sequences a step, over all ranks and micro-batches", "24").alias("global-batch"),
    flag("micro-batch", "N", "Sequences of one micro-batch on one rank", "the rank's share"),
    flag("lr", "X", "Learning rate at the end of warm-up; falls by a cosine to a tenth", "0.003"),
    flag("warmup", "N", "Steps over which the learning rate rises", "a tenth of steps, at most 50"),
    flag("weight-decay", "X", "Decay of the matrices' weights", "0.1"),
    flag("clip", "X", "Largest global norm of the gradient; 0 does not clip", "1"),
    flag("seed", "N", "Seed of the initial weights and of the data order", "1"),
    choice("dtype", &["f32", "bf16"], "Type of the weights; bf16 keeps f32 master weights", "f32"),
    flag("eval-every", "N", "Steps between held-out losses, also taken at the end; 0 never", "100"),
    flag("eval-sequences", "N", "Sequences of a held-out loss", "64"),
    flag("save-every", "N", "Steps between checkpoints, also written at the end; 0 only at the end", "100").free(),
    flag("sample", "N", "Tokens generated at the end", "200").free(),
    flag("trace", "FILE", "Write a Chrome trace of one step", "").free(),
    flag("dump", "STEPS", "Write the tensors of these steps for `warpweft diff`: 3, 1-5, or several with commas", "")
        .free(),
    flag("dump-every", "N", "Write the tensors of every so many steps; 0 of none", "0").free(),
    flag("dump-what", "LIST", "Which of them: activations, errors, gradients, weights", "all").free(),
    flag("ranks", "N", "Ranks, started here", "2, or those of the launcher").free(),
    flag("threads", "N", "Threads of each rank", "the cores, divided by the ranks").free(),
    choice("launch", &["processes", "threads"], "What a local rank is", "processes").free(),
    choice("transport", &["auto", "thread", "shm", "tcp"], "What carries the bytes between ranks", "auto").free(),
    flag("timeout", "SECONDS", "Deadline of every wait for another rank", "600").free(),
    flag("dp", "N", "Data parallel ranks", "what the other axes leave of ranks").free(),
    flag("pp", "N", "Pipeline parallel ranks: each is a stage of the model", "1").free(),
    flag("cp", "N", "Context parallel ranks: each has a part of every sequence", "1").free(),
    choice("cp-method", &["ring", "ulysses"], "Keys and values go round, or tokens are exchanged for heads", "ring")
        .free(),
    flag("tp", "N", "Tensor parallel ranks: each has heads and columns of its own", "1").free(),
    flag(
        "ep",
        "N",
        "Expert parallel ranks, neighbours among the data and context parallel ones: each has experts of its own",
        "1",
    )
    .free(),
    choice(
        "zero",
        &["0", "1", "2", "3"],
        "What data parallel ranks share out: 1 optimizer, 2 gradients, 3 weights",
        "0",
    )
    .free(),
    flag("shards", "N", "Neighbouring data parallel ranks that hold what zero shares out once", "all of them").free(),
    flag("sp", "", "Share the rows of norms and residual stream out over the tensor parallel ranks", "false")
        .switch()
        .free(),
    choice(
        "schedule",
        &["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "auto"],
        "Pipeline schedule",
        "1f1b",
    )
    .free(),
    flag("chunks", "N", "Model chunks of a pipeline stage", "what the schedule needs; 2 where it is interleaved")
        .free(),
    choice(
        "recompute",
        &["none", "selective", "full"],
        "Activations computed again in the backward pass: none, those that take no product, all of a block",
        "none",
    )
    .free(),
    flag(
        "device",
        "NAME",
        "Where the kernels run: cpu, cuda, cuda:N, software (a GPU in software, which checks)",
        "cpu",
    )
    .free(),
    flag(
        "overlap",
        "",
        "Sum gradients and gather weights while passes compute; the numbers do not depend on it",
        "true",
    )
    .switch()
    .free(),
    flag("dry-run", "", "Train nothing: print mesh, memory by rank, bytes and bubble of a step, as predicted", "false")
        .switch()
        .free(),
    flag("exact", "", "Bit-equal numbers for any number of data parallel ranks and micro-batches", "false").switch(),
];
