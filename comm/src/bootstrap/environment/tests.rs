//! Environments as launchers make them, those that real ones printed among them.

use super::*;

fn read(set: &[(&str, &str)]) -> Result<Option<Described>, CommError> {
    let find = |name: &str| set.iter().rfind(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    Described::read(&Variables { get: &|name| Ok(find(name)), process: 4711 })
}

const TORCH: [(&str, &str); 5] =
    [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "node0"), ("MASTER_PORT", "29500")];

fn with(extra: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [&TORCH[..], extra].concat()
}

fn error(set: &[(&str, &str)]) -> String {
    read(set).err().map(|error| error.to_string()).expect("an error")
}

#[test]
fn torchruns_variables_are_read() {
    assert_eq!(read(&[]).expect("none"), None);
    let found = read(&TORCH).expect("all").expect("all");
    assert_eq!((found.place.rank, found.place.world, found.place.local_rank), (1, 4, 1));
    assert_eq!((found.meeting.address().as_str(), found.place.launcher), ("node0:29500", Launcher::Torchrun));
    assert_eq!(found.timeout, DEFAULT_TIMEOUT);
    let found = read(&with(&[("TORCHELASTIC_USE_AGENT_STORE", "True")])).expect("all").expect("all");
    assert_eq!(found.meeting.port, 29501, "the agent's own store has the port");
    let found = read(&with(&[("WARPWEFT_TIMEOUT", "1.5")])).expect("all").expect("all");
    assert_eq!(found.timeout, Duration::from_millis(1500));
}

#[test]
fn our_launchers_variables_are_read() {
    let ours = [
        ("WARPWEFT_RANK", "0"),
        ("WARPWEFT_WORLD_SIZE", "2"),
        ("WARPWEFT_LOCAL_RANK", "0"),
        ("WARPWEFT_RENDEZVOUS", "127.0.0.1:4000"),
    ];
    let found = read(&ours).expect("all").expect("all");
    assert_eq!((found.meeting.address().as_str(), found.place.launcher), ("127.0.0.1:4000", Launcher::Ours));
    assert!(error(&[&TORCH[..], &ours[..]].concat()).contains("both set"));
}

#[test]
fn wrong_variables_are_named_with_their_value() {
    for missing in 0..5 {
        let mut partial = TORCH.to_vec();
        let (name, _) = partial.remove(missing);
        let error = error(&partial);
        assert!(error.contains(&format!("but {name} is not")), "{error}");
    }
    for (name, value) in [
        ("RANK", "one"),
        ("RANK", "-1"),
        ("WORLD_SIZE", "4.0"),
        ("LOCAL_RANK", "x"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
        ("WARPWEFT_TIMEOUT", "0"),
        ("WARPWEFT_TIMEOUT", "inf"),
        ("WARPWEFT_TIMEOUT", "nan"),
    ] {
        let error = error(&with(&[(name, value)]));
        assert!(error.contains(&format!("{name} is `{value}`")), "{error}");
    }
    assert!(error(&with(&[("RANK", "4")])).contains("RANK is 4, but WORLD_SIZE is 4"));
    assert!(error(&with(&[("WORLD_SIZE", "0")])).contains("WORLD_SIZE is 0"));
    let error_of_many = error(&with(&[("WORLD_SIZE", "1000000000000")]));
    assert!(error_of_many.contains("WORLD_SIZE asks for 1000000000000 ranks"), "{error_of_many}");
    let error = error(&with(&[("WARPWEFT_SECRET", "abc")]));
    assert!(error.contains("WARPWEFT_SECRET") && !error.contains("abc"), "{error}");
}

/// What Open MPI 4.1.4 sets for the second of two ranks on one host.
const OPEN_MPI: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_MCA_ess_base_jobid", "973012993"),
    ("PMIX_NAMESPACE", "973012993"),
];

/// What MPICH 4.0.2 sets for the second of two ranks on one host.
const MPICH: [(&str, &str); 5] =
    [("MPI_LOCALNRANKS", "2"), ("MPI_LOCALRANKID", "1"), ("PMI_FD", "8"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];

/// What srun of Slurm 22.05 sets for task 3 of 5 on three hosts.
const SRUN: [(&str, &str); 11] = [
    ("SLURM_JOB_ID", "17"),
    ("SLURM_JOB_NODELIST", "n[01-04]"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
    ("SLURM_NTASKS", "5"),
    ("SLURM_PROCID", "3"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "n[02-04]"),
    ("SLURM_STEP_NUM_TASKS", "5"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
    ("SLURM_TASK_PID", "4711"),
];

fn found(sets: &[&[(&str, &str)]]) -> Described {
    read(&sets.concat()).unwrap_or_else(|error| panic!("{error}")).expect("a job")
}

fn refused(sets: &[&[(&str, &str)]]) -> String {
    error(&sets.concat())
}

fn told(found: &Described) -> (Launcher, usize, usize, usize, Option<usize>) {
    let Place { launcher, rank, world, local_rank, local_world, .. } = found.place;
    (launcher, rank, world, local_rank, local_world)
}

#[test]
fn open_mpis_variables_are_read_and_several_hosts_need_a_place_to_meet() {
    let here = found(&[&OPEN_MPI]);
    assert_eq!(told(&here), (Launcher::OpenMpi, 1, 2, 1, Some(2)));
    assert_eq!((here.meeting.host.as_str(), here.meeting.job.as_deref()), ("127.0.0.1", Some("973012993")));
    let again = found(&[&OPEN_MPI, &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")]]);
    assert_eq!(again.meeting, here.meeting, "all ranks derive the same");
    let other = found(&[&OPEN_MPI, &[("PMIX_NAMESPACE", "prterun-vm-21761@1")]]);
    assert_ne!(other.meeting.port, here.meeting.port);
    let hosts = [("OMPI_COMM_WORLD_SIZE", "4")];
    let error = refused(&[&OPEN_MPI, &hosts]);
    assert!(error.contains("2 of 4 ranks") && error.contains("-x MASTER_ADDR=HOST -x MASTER_PORT=PORT"), "{error}");
    // The place alone is no job of torchrun's.
    let place = [("MASTER_ADDR", "node0"), ("MASTER_PORT", "4000")];
    assert_eq!(found(&[&OPEN_MPI, &hosts, &place]).meeting.address(), "node0:4000");
    assert!(refused(&[&OPEN_MPI, &[("MASTER_PORT", "0")]]).contains("MASTER_PORT is `0`"));
    assert!(refused(&[&OPEN_MPI[..3]]).contains("OMPI_COMM_WORLD_LOCAL_SIZE is not"));
    assert!(refused(&[&OPEN_MPI, &[("OMPI_COMM_WORLD_RANK", "2")]]).contains("OMPI_COMM_WORLD_RANK is 2"));
}

#[test]
fn hydras_variables_are_read_and_without_its_proxy_a_port_must_be_given() {
    let port = [("MASTER_PORT", "4000")];
    let here = found(&[&MPICH, &port]);
    assert_eq!(told(&here), (Launcher::Hydra, 1, 2, 1, Some(2)));
    assert_eq!(here.meeting.address(), "127.0.0.1:4000");
    // No process of this test has Hydra above it.
    assert!(refused(&[&MPICH]).contains("-genv MASTER_ADDR HOST -genv MASTER_PORT PORT"));
    assert!(refused(&[&MPICH, &[("PMI_SIZE", "8")], &port]).contains("2 of 8 ranks"));
}

#[test]
fn sruns_variables_are_read_and_the_step_counts_not_the_allocation() {
    let here = found(&[&SRUN]);
    assert_eq!(told(&here), (Launcher::Slurm, 3, 5, 1, Some(2)));
    assert_eq!((here.meeting.host.as_str(), here.meeting.job.as_deref()), ("n02", Some("17.0")));
    assert_eq!(found(&[&SRUN, &[("SLURM_NTASKS", "8")]]).place.world, 5);
    assert_eq!(found(&[&SRUN, &[("SLURM_NODEID", "2")]]).place.local_world, Some(1));
    assert_eq!(found(&[&SRUN, &[("SLURM_STEP_NODELIST", "n02")]]).meeting.host, "127.0.0.1");
    assert_eq!(found(&[&SRUN, &[("MASTER_ADDR", "10.0.0.1")]]).meeting.host, "10.0.0.1");
    assert_ne!(found(&[&SRUN, &[("SLURM_STEP_ID", "1")]]).meeting.port, here.meeting.port);
    for (name, value) in
        [("SLURM_STEP_NODELIST", "n[2-"), ("SLURM_STEP_TASKS_PER_NODE", "2(x1)"), ("SLURM_PROCID", "x")]
    {
        assert!(refused(&[&SRUN, &[(name, value)]]).contains(&format!("{name} is `{value}`")), "{name}");
    }
    assert!(refused(&[&SRUN, &[("SLURM_LOCALID", "")]]).contains("SLURM_LOCALID is not"));
}

#[test]
fn slurms_shells_are_no_ranks() {
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_LOCALID", "0"), ("SLURM_TASK_PID", "4711")];
    assert_eq!(read(&batch).expect("no rank"), None);
    assert_eq!(read(&[("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "3")]).expect("no rank"), None);
    let one = [("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0"), ("SLURM_PTY_PORT", "4000")];
    let typed = [&SRUN[..], &one, &[("SLURM_TASK_PID", "99")]].concat();
    assert_eq!(read(&typed).expect("no rank"), None);
    assert_eq!(found(&[&SRUN, &one]).place.world, 1, "srun started this process itself");
}

#[test]
fn of_several_launchers_the_one_that_started_this_process_counts_or_none() {
    let shell = [("SLURM_TASK_PID", "99")];
    let port = [("MASTER_PORT", "4000")];
    // mpirun starts a daemon on each host by srun.
    assert_eq!(found(&[&SRUN, &shell, &OPEN_MPI]).place.launcher, Launcher::OpenMpi);
    assert_eq!(found(&[&SRUN, &shell, &MPICH, &port]).place.launcher, Launcher::Hydra);
    // srun under mpirun: this process is srun's own.
    assert_eq!(found(&[&SRUN, &OPEN_MPI]).place.launcher, Launcher::Slurm);
    // srun --mpi=pmi2.
    assert_eq!(found(&[&SRUN, &[("PMI_RANK", "3"), ("PMI_SIZE", "5")]]).place.launcher, Launcher::Slurm);
    // Four jobs of one rank, or one of five?
    let one = [("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
    let error = refused(&[&SRUN, &shell, &OPEN_MPI, &one]);
    assert!(error.contains("OMPI_COMM_WORLD_RANK = 0 of OMPI_COMM_WORLD_SIZE = 1"), "{error}");
    assert!(error.contains("SLURM_PROCID = 3 of SLURM_STEP_NUM_TASKS = 5") && error.contains("env -u"), "{error}");
    // torchrun's agents by srun, and a torchrun of somebody else around it.
    let agents = [("TORCHELASTIC_RUN_ID", "r"), ("GROUP_WORLD_SIZE", "5")];
    assert_eq!(found(&[&SRUN, &shell, &TORCH, &agents]).place.launcher, Launcher::Torchrun);
    assert!(refused(&[&SRUN, &shell, &TORCH, &agents, &[("GROUP_WORLD_SIZE", "1")]]).contains("both set"));
    assert!(refused(&[&SRUN, &TORCH]).contains("both set"));
    assert!(refused(&[&OPEN_MPI, &TORCH]).contains("both set"));
    // A script that gives torchrun's variables from Slurm's.
    let copied = [("RANK", "3"), ("WORLD_SIZE", "5")];
    assert_eq!(found(&[&SRUN, &TORCH, &copied]).place.launcher, Launcher::Torchrun);
    let partial = [("RANK", "3")];
    assert!(refused(&[&SRUN, &partial]).contains("WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not"));
}

#[test]
fn what_tells_a_rank_is_hidden_from_children_of_our_launcher() {
    let hidden: Vec<&str> = foreign().collect();
    let set = [&TORCH[..], &OPEN_MPI, &MPICH, &SRUN].concat();
    let left: Vec<_> = set.into_iter().filter(|(name, _)| !hidden.contains(name)).collect();
    assert_eq!(read(&left).unwrap_or_else(|error| panic!("{error}")), None);
}
