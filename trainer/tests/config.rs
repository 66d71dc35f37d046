//! What a configuration accepts, what it refuses, and with which words.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use warpweft_comm::Communicator;
use warpweft_trainer::checkpoint::{Saver, Snapshot};
use warpweft_trainer::config::{Config, ConfigError, FLAGS, Family, Flag, Inputs, Launch, Launched, Origin};
use warpweft_trainer::model::MoeShape;
use warpweft_trainer::model::Recompute;
use warpweft_trainer::parallel::context::Method;

fn pairs(text: &str) -> Vec<(String, String)> {
    let words: Vec<_> = text.split_whitespace().collect();
    words.chunks(2).map(|pair| (pair[0].to_string(), pair[1].to_string())).collect()
}

fn flags(text: &str) -> Result<Config, ConfigError> {
    Config::resolve(&Inputs { flags: &pairs(text), ..Inputs::default() })
}

fn with_file(file: &str, text: &str) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    fs::write(&path, file).unwrap();
    Config::resolve(&Inputs { file: Some(&path), flags: &pairs(text), ..Inputs::default() })
}

fn launched(text: &str, world: usize) -> Result<Config, ConfigError> {
    let launched = Some(Launched { variable: "WORLD_SIZE".into(), world });
    Config::resolve(&Inputs { flags: &pairs(text), launched, ..Inputs::default() })
}

#[track_caller]
fn message(result: Result<Config, ConfigError>) -> String {
    match result {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn says(result: Result<Config, ConfigError>, parts: &[&str]) {
    let text = message(result);
    for part in parts {
        assert!(text.contains(part), "`{text}` lacks `{part}`");
    }
    assert!(!text.contains('\n'), "more than one line: {text}");
}

#[test]
fn nothing_given_is_a_small_gpt2_on_two_ranks() {
    let config = flags("").unwrap();
    assert_eq!(config.data, None);
    assert_eq!((config.model, config.vocab, config.ranks), (Family::Gpt2, 256, 2));
    assert_eq!((config.layers, config.heads, config.kv_heads, config.channels), (4, 4, 4, 128));
    assert_eq!(config.head_size(), 32);
    assert!(!config.launched);
}

#[test]
fn the_help_states_the_defaults_that_are_used() {
    let config = flags("").unwrap();
    let stored: toml::Table = config.to_toml().parse().unwrap();
    for flag in FLAGS {
        let Some(value) = stored.get(flag.name) else { continue };
        // Those that depend on others are described in words.
        let same = match value {
            toml::Value::String(text) => text == flag.default,
            toml::Value::Integer(number) => flag.default.parse() == Ok(*number),
            toml::Value::Float(number) => flag.default.parse() == Ok(*number),
            toml::Value::Boolean(switch) => flag.default.parse() == Ok(*switch),
            _ => false,
        };
        let worded = ["kv-heads", "warmup", "ranks", "expert-hidden"].contains(&flag.name);
        assert!(same || worded, "{}: help says {}, and {value} is used", flag.name, flag.default);
    }
    assert_eq!(config.warmup, (config.steps / 10).min(50));
}

#[test]
fn a_flag_overrides_the_file() {
    let file = "layers = 2\nlr = 0.5\nmodel = \"llama\"\nglobal-batch = 8\n";
    let config = with_file(file, "layers 6").unwrap();
    assert_eq!((config.layers, config.lr, config.model, config.batch), (6, 0.5, Family::Llama, 8));
    assert_eq!(config.origin("layers"), Origin::Flag);
    assert!(matches!(config.origin("lr"), Origin::File(_)));
    assert_eq!(config.origin("clip"), Origin::Default);
}

#[test]
fn the_issue_example_is_accepted() {
    let config = flags(
        "data FILE ranks 4 steps 200 out DIR model llama channels 128 layers 4 heads 4 context 128 batch 16 \
         launch threads transport tcp threads 1 timeout 2.5 clip 0 kv-heads 2 dtype bf16 trace t.json",
    )
    .unwrap();
    assert_eq!((config.ranks, config.steps, config.batch, config.context), (4, 200, 16, 128));
    assert_eq!((config.launch, config.threads, config.clip, config.kv_heads), (Launch::Threads, Some(1), None, 2));
    assert_eq!(config.timeout.as_millis(), 2500);
    assert!(config.data.unwrap().paths().all(Path::is_absolute));
}

#[test]
fn every_setting_has_one_name_and_is_known_by_it() {
    let mut names: Vec<_> = FLAGS.iter().flat_map(|flag| [Some(flag.name), flag.alias]).flatten().collect();
    assert!(FLAGS.iter().all(|flag| !flag.help.is_empty()));
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "a name is there twice");
    for name in "data out resume model layers channels heads kv-heads context vocab experts top-k steps batch \
                 global-batch micro-batch lr warmup clip seed dtype ranks threads launch transport timeout dp pp cp tp \
                 ep zero sp schedule chunks recompute packing end-token device exact trace"
        .split_whitespace()
    {
        assert!(Flag::find(name).is_some(), "{name}");
    }
}

#[test]
fn unknown_names_get_the_nearest() {
    says(flags("layer 3"), &["`layer`", "flag", "did you mean `layers`?"]);
    says(with_file("kv_heads = 2", ""), &["`kv_heads`", "run.toml", "did you mean `kv-heads`?"]);
    says(flags("contxt 3"), &["did you mean `context`?"]);
    let text = message(flags("zzzzzzzzzz 3"));
    assert!(!text.contains("did you mean"), "{text}");
}

#[test]
fn unknown_choices_get_the_nearest_and_the_list() {
    says(flags("model lama"), &["model", "`lama`", "did you mean `llama`?", "gpt2 or llama"]);
    says(flags("transport smh"), &["did you mean `shm`?", "auto or thread or shm or tcp"]);
    says(flags("dtype f64"), &["`f64`", "f32 or bf16"]);
}

#[test]
fn numbers_out_of_range_are_refused_with_what_is_allowed() {
    for (text, name) in [
        ("ranks 0", "ranks"),
        ("context 0", "context"),
        ("layers -1", "layers"),
        ("heads x", "heads"),
        ("steps 1.5", "steps"),
        ("lr nan", "lr"),
        ("lr -1", "lr"),
        ("lr inf", "lr"),
        ("clip -0.5", "clip"),
        ("timeout 0", "timeout"),
        ("timeout 1e300", "timeout"),
        ("batch 99999999999999999999999", "batch"),
        ("micro-batch 0", "micro-batch"),
        ("threads 0", "threads"),
        ("channels 4294967296", "channels"),
    ] {
        let value = text.split(' ').next_back().unwrap();
        says(flags(text), &[name, &format!("`{value}`"), "(flag)", "give a"]);
    }
}

#[test]
fn heads_must_divide() {
    says(flags("channels 24 heads 5"), &["channels 24 (flag)", "heads 5 (flag)", "use 1, 2, 3, 4, 6, 8, 12, 24 heads"]);
    says(flags("heads 5"), &["channels 128 (default)", "heads 5 (flag)", "1, 2, 4, 8, 16, 32, 64, 128 heads"]);
    says(flags("heads 8 kv-heads 3"), &["heads 8 (flag)", "kv-heads 3 (flag)", "use 1, 2, 4, 8 kv-heads"]);
    says(with_file("heads = 5", ""), &["heads 5 (", "run.toml)"]);
    says(flags("model llama channels 12 heads 4"), &["heads of 3", "pairs", "use 1, 2, 3, 6 heads"]);
    says(flags("model llama channels 5 heads 5"), &["heads of 1", "use an even number of channels, 6"]);
    assert!(flags("model gpt2 channels 12 heads 4").is_ok(), "only rotary positions need an even head size");
}

#[test]
fn the_batch_must_reach_every_rank() {
    says(flags("batch 2 ranks 3"), &["batch 2 (flag)", "ranks 3 (flag)", "at least 3", "at most 2"]);
    assert!(flags("batch 3 ranks 3").is_ok());
}

#[test]
fn warm_up_fits_into_the_steps() {
    says(flags("steps 10 warmup 11"), &["warmup 11 (flag)", "steps 10 (flag)", "at most 10"]);
    assert_eq!(flags("steps 10").unwrap().warmup, 1);
}

#[test]
fn a_launchers_world_size_and_ranks_must_agree() {
    assert_eq!(launched("", 3).unwrap().ranks, 3);
    assert!(launched("ranks 3", 3).unwrap().launched);
    says(launched("ranks 4", 3), &["ranks 4 (flag)", "WORLD_SIZE = 3", "leave --ranks out"]);
    says(launched("dp 4", 3), &["WORLD_SIZE 3 (environment variable WORLD_SIZE) is not dp 4 (flag)", "leave --dp out"]);
    says(launched("batch 2", 3), &["ranks 3 (environment variable WORLD_SIZE)"]);
}

#[test]
fn dp_is_what_the_other_axes_leave_of_the_ranks() {
    assert_eq!(flags("dp 4").unwrap().ranks, 4);
    assert_eq!(flags("dp 4 ranks 4").unwrap().ranks, 4);
    says(flags("dp 4 ranks 2"), &["ranks 2 (flag)", "dp 4 (flag)", "--ranks 4"]);
}

#[test]
fn context_parallel_ranks_are_an_axis_of_the_ranks() {
    let config = flags("cp 2 ranks 4").unwrap();
    assert_eq!((config.sizes.dp, config.sizes.cp, config.cp_method), (2, 2, Method::Ring));
    assert_eq!(flags("cp 3").unwrap().ranks, 3);
    says(flags("cp 2 ranks 3"), &["ranks 3 (flag) do not divide by cp 2 (flag)", "a multiple of 2 ranks"]);
    says(flags("cp 2 dp 2 ranks 6"), &["ranks 6 (flag) is not dp 2 (flag) x tp 1 x pp 1 x cp 2 (flag)", "--ranks 4"]);
    let refused = flags("cp 3 cp-method ulysses");
    says(refused, &["cp-method ulysses (flag): heads 4 a rank and cp 3 (flag) do not divide", "use cp 1, 2, 4"]);
    assert_eq!(flags("cp 2 cp-method ulysses").unwrap().cp_method, Method::Ulysses);
}

#[test]
fn the_axes_multiply_to_the_ranks() {
    let sizes = |text| flags(text).map(|config| (config.ranks, config.sizes.dp, config.sizes.tp)).unwrap();
    assert_eq!(sizes("tp 2"), (2, 1, 2));
    assert_eq!(sizes("tp 2 ranks 4"), (4, 2, 2));
    assert_eq!(sizes("tp 2 dp 3"), (6, 3, 2));
    assert_eq!(flags("pp 2 tp 2 dp 2").unwrap().ranks, 8);
    says(flags("tp 2 ranks 3"), &["ranks 3 (flag) do not divide by tp 2 (flag)", "a multiple of 2 ranks"]);
    says(flags("tp 2 dp 2 ranks 6"), &["ranks 6 (flag) is not dp 2 (flag) x tp 2 (flag) x pp 1 x cp 1", "--ranks 4"]);
    let refused = flags("channels 120 heads 24 tp 5 ranks 5");
    says(refused, &["heads 24 (flag) do not divide by tp 5 (flag)", "use tp 1, 2, 3, 4, 6, 8, 12, 24"]);
    let refused = flags("model llama heads 6 channels 48 kv-heads 2 tp 3");
    says(refused, &["kv-heads 2 (flag) can be neither", "use tp 1, 2, 6"]);
    says(flags("sp true"), &["sp true (flag) shares rows out over one rank, tp 1 (default)", "give --tp too"]);
    assert!(flags("sp true tp 2").unwrap().sequence_parallel);
    says(
        flags("zero 2 shards 2 dp 3"),
        &["shards 2 (flag) does not divide dp 3 x cp 1 = 3 data ranks", "use shards 1, 3"],
    );
    let config = flags("zero 3 shards 2 dp 4 pp 2 schedule zb-h1").unwrap();
    assert_eq!((config.zero.stage, config.zero.shards, config.schedule.as_str()), (3, Some(2), "zb-h1"));
    says(flags("schedule 1f1"), &["did you mean `1f1b`?"]);
    says(flags("end-token 10"), &["end-token 10 (flag)", "packing is windows", "--packing documents"]);
    says(
        flags("packing documents end-token 256"),
        &["end-token 256 (flag) is none of vocab 256 (default)", "below 256"],
    );
    let config = flags("packing documents end-token 10 recompute full").unwrap();
    assert_eq!((config.documents, config.end_token, config.recompute), (true, Some(10), Recompute::Full));
}

#[test]
fn experts_are_a_mixture_of_the_sizes_asked_for() {
    let moe = |text: &str| flags(text).map(|config| (config.shape().moe.expect("experts"), config.shape().hidden));
    let usual = MoeShape { balance: 0.01, ..MoeShape::new(8, 2, 512) };
    assert_eq!(moe("experts 8").unwrap(), (usual, 0));
    assert_eq!(moe("model llama experts 8").unwrap().0.hidden, 384, "as wide as the MLP of a dense model");
    let text =
        "experts 4 top-k 1 expert-hidden 48 shared-expert 96 router sigmoid capacity 1.25 aux-loss 0 bias-rate 1e-3";
    let sigmoid = MoeShape { sigmoid: true, capacity: Some(1.25), bias_rate: 1e-3, ..MoeShape::new(4, 1, 48) };
    assert_eq!(moe(text).unwrap(), (sigmoid, 96));
    let config = flags(text).unwrap();
    assert_eq!(with_file(&config.to_toml(), "").unwrap().shape(), config.shape());
    let dense = flags("experts 0").unwrap().shape();
    assert_eq!((dense.moe, dense.hidden), (None, 512));
}

#[test]
fn experts_are_shared_out_inside_the_data_and_context_ranks() {
    let sizes = |text| flags(text).map(|config| (config.ranks, config.sizes.dp, config.sizes.ep)).unwrap();
    assert_eq!(sizes("experts 4 ep 2 ranks 4"), (4, 4, 2));
    assert_eq!(sizes("experts 4 ep 3"), (3, 3, 3), "as many ranks as they need");
    assert_eq!(sizes("experts 4 ep 4 cp 2"), (4, 2, 4));
    says(
        flags("experts 8 ep 3 ranks 4"),
        &["ep 3 (flag) does not divide dp 4 x cp 1 = 4 data ranks", "use ep 1, 2, 4"],
    );
    says(flags("ep 2"), &["ep 2 (flag) shares out experts, and experts 0 (default)", "give --experts"]);
    says(
        flags("experts 3 ep 4 ranks 4"),
        &["experts 3 (flag) leave ranks without one at ep 4 (flag)", "use ep 1, 2, or at least 4 experts"],
    );
    says(flags("experts 2 top-k 3"), &["top-k 3 (flag) is more than experts 2 (flag)", "at most 2"]);
    says(flags("experts 1"), &["top-k 2 (default) is more than experts 1 (flag)", "at most 1"]);
    for of_experts in ["top-k 1", "router sigmoid", "capacity 1", "aux-loss 0", "shared-expert 8"] {
        says(flags(of_experts), &[of_experts, "(flag)", "experts is 0 (default)", "give --experts"]);
    }
    says(flags("experts 4 router sigmod"), &["router", "did you mean `sigmoid`?"]);
    says(flags("experts 4 capacity -1"), &["capacity", "`-1`", "a finite number from 0"]);
    says(flags("experts 4 expert-hidden 0"), &["expert-hidden", "`0`", "a whole number from 1"]);
    says(flags("expert 4"), &["did you mean `experts`?"]);
}

#[test]
fn a_device_of_its_own_goes_with_everything() {
    for more in ["tp 2 ranks 2", "cp 2 ranks 2", "exact true", "experts 4 ep 2 ranks 2"] {
        assert_eq!(flags(&format!("device software {more}")).unwrap().device, "software");
    }
}

#[test]
fn a_setting_is_given_once() {
    says(flags("batch 4 global-batch 8"), &["batch is given twice", "`4`", "`8`"]);
    says(with_file("layers = 1\nlayers = 2", ""), &["run.toml, line 2"]);
}

#[test]
fn files_that_are_no_settings_are_refused_at_the_place() {
    says(with_file("layers = 1\nheads = = 2\n", ""), &["run.toml, line 2, column 9"]);
    says(with_file("layers = [1, 2]", ""), &["run.toml, line 1", "`layers` is a list"]);
    says(with_file("[model]\nlayers = 1", ""), &["run.toml, line 1", "`model` is a section"]);
    says(with_file("[optimiser]\nlr = 1", ""), &["no setting `optimiser`"]);
    says(with_file("resume = 'x'", ""), &["resume", "--resume DIR"]);
    let missing = Path::new("/nonexistent/run.toml");
    says(
        Config::resolve(&Inputs { file: Some(missing), ..Inputs::default() }),
        &["cannot read /nonexistent/run.toml", "No such file"],
    );
}

#[test]
fn no_text_of_a_file_makes_it_panic() {
    let text = "# a run\nlayers = 2\nlr = 1e-3\nmodel = \"llama\"\nexact = false\ndata = 'ü.txt'\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    let resolve = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Config::resolve(&Inputs { file: Some(&path), ..Inputs::default() })
    };
    assert!(resolve(text.as_bytes()).is_ok());
    for at in 0..text.len() {
        for byte in [0, b'\n', b'=', b'"', b'[', b'-', b'9', 0xc3, 0xff] {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = byte;
            if let Err(error) = resolve(&bytes) {
                assert!(!error.to_string().is_empty());
            }
        }
        let _ = resolve(&text.as_bytes()[..at]);
    }
}

#[test]
fn a_configuration_survives_its_file() {
    let given = "data x.bin out o model llama channels 96 heads 6 kv-heads 3 seed 18446744073709551615 lr 1e-7 \
                 micro-batch 2 threads 3 timeout 0.25 dtype bf16 clip 0 launch threads transport shm steps 17 \
                 eval-every 3 save-every 5 sample 0 weight-decay 0.01 vocab 65 context 32";
    let first = flags(given).unwrap();
    let second = with_file(&first.to_toml(), "").unwrap();
    assert_eq!(first.to_toml(), second.to_toml());
    assert_eq!((second.seed, second.lr, second.clip), (u64::MAX, 1e-7, None));
    assert_eq!((second.micro_batch, second.threads, second.timeout.as_millis()), (Some(2), Some(3), 250));
}

fn saved(run: &Path, config: &Config) {
    let mut saver = Saver::new(run, Arc::new(Communicator::alone()));
    let snapshot = Snapshot {
        step: 10,
        seed: config.seed,
        data_tokens: 0,
        config: config.to_toml(),
        wholes: Vec::new(),
        weights: Vec::new(),
        optimizer: Vec::new(),
    };
    saver.save(snapshot).unwrap();
    saver.finish().unwrap();
}

#[test]
fn a_resumed_run_takes_its_configuration_from_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    saved(&run, &flags("layers 3 ranks 3 batch 9 out elsewhere trace t.json").unwrap());
    let dir = run.display();
    let config = flags(&format!("resume {dir}")).unwrap();
    assert_eq!((config.layers, config.ranks, config.batch), (3, 3, 9));
    assert_eq!((config.out.as_path(), &config.trace), (run.as_path(), &None));
    assert_eq!(config.resume.as_deref(), Some(run.join("checkpoints/step-000010").as_path()));
    assert!(matches!(config.origin("layers"), Origin::Checkpoint(_)));

    let config = flags(&format!("resume {dir}/checkpoints/step-000010 ranks 2 steps 900 out new")).unwrap();
    assert_eq!((config.ranks, config.steps, config.out.as_path()), (2, 900, Path::new("new")));
    assert_eq!(flags(&format!("resume {dir} dp 4")).unwrap().ranks, 4);
    assert_eq!(launched(&format!("resume {dir}"), 5).unwrap().ranks, 5);
    says(flags(&format!("resume {dir} ranks 10")), &["batch 9 (", "config.toml)", "ranks 10 (flag)"]);

    // The run's own values may be repeated, so that the same command with --resume is accepted.
    assert_eq!(flags(&format!("resume {dir} layers 3 batch 9 lr 3e-3")).unwrap().layers, 3);
    says(flags(&format!("resume {dir} layers 4")), &["layers 4 (flag)", "which has 3;"]);
    for fixed in ["layers 4", "batch 8", "seed 2", "lr 0.1", "data x", "dtype bf16", "warmup 1"] {
        says(flags(&format!("resume {dir} {fixed}")), &[fixed, "(flag)", "cannot change", "ranks", "steps"]);
    }
    let file = folder.path().join("run.toml");
    fs::write(&file, "layers = 3").unwrap();
    let both = pairs(&format!("resume {dir}"));
    says(
        Config::resolve(&Inputs { file: Some(&file), flags: &both, ..Inputs::default() }),
        &["--resume", "run.toml", "leave one of them out"],
    );
}

#[test]
fn a_folder_without_a_checkpoint_is_named() {
    let folder = tempfile::tempdir().unwrap();
    says(flags(&format!("resume {}", folder.path().display())), &["no checkpoint in", "checkpoints/latest"]);
    says(flags("resume /nonexistent/run"), &["cannot open /nonexistent/run", "No such file"]);
}

#[test]
fn several_sources_by_weight_are_made_absolute_and_read_back() {
    let config = flags("data 0.7:web.bin,0.3:books").unwrap();
    let blend = config.data.clone().unwrap();
    assert!(blend.paths().all(Path::is_absolute));
    assert!(with_file(&config.to_toml(), "").unwrap().data == Some(blend));
    says(flags("data 0.7:a,0:b"), &["data", "0.7:a,0:b", "weight `0` of b", "above 0"]);
    says(flags("data 1:a,-2:b"), &["weight `-2` of b"]);
    says(flags("data 1:a,2:a"), &["a is there twice"]);
}
