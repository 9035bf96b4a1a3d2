use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use proptest::prelude::*;

use super::slurm_lists::{first_host, tasks_of_node};
use super::{LauncherError, Placement, from_vars};
use crate::ClusterConfig;

/// Variables of `srun -n 5` on three hosts, of its last task (Slurm 22.05).
const SRUN: &str = "SLURM_CPUS_ON_NODE=2 SLURM_DISTRIBUTION=block SLURM_GTIDS=4 SLURM_JOBID=1 SLURM_JOB_ID=1 \
    SLURM_JOB_NODELIST=node[003-005] SLURM_JOB_NUM_NODES=3 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 \
    SLURM_LOCALID=0 SLURM_NNODES=3 SLURM_NODEID=2 SLURM_NODELIST=node[003-005] SLURM_NPROCS=5 SLURM_NTASKS=5 \
    SLURM_NTASKS_PER_NODE=2 SLURM_PROCID=4 SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[003-005] \
    SLURM_STEP_NUM_NODES=3 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_TASKS_PER_NODE=2(x2),1 \
    SLURM_TASKS_PER_NODE=2(x2),1";

/// Variables of the script of `sbatch -N 3 -n 5`.
const SBATCH: &str = "SLURM_GTIDS=0 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=node[003-005] SLURM_JOB_NUM_NODES=3 \
    SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=5 SLURM_NTASKS_PER_NODE=2 SLURM_PROCID=0 \
    SLURM_TASKS_PER_NODE=2(x3)";

/// Variables of `torchrun --nproc-per-node 2` (torch 2.x), of the second process.
const TORCHRUN: &str = "GROUP_RANK=0 GROUP_WORLD_SIZE=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 \
    MASTER_ADDR=localhost MASTER_PORT=33955 RANK=1 ROLE_NAME=default ROLE_RANK=1 ROLE_WORLD_SIZE=2 \
    TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_RUN_ID=7b29338f \
    TORCHELASTIC_USE_AGENT_STORE=True WORLD_SIZE=2";

/// Variables of `mpirun -n 4` of Open MPI 4.1 within a job of Slurm, of the last process.
const MPIRUN: &str = "OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_NODE_RANK=0 \
    OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_UNIVERSE_SIZE=4 PMIX_NAMESPACE=1622540289 PMIX_RANK=3 \
    SLURM_JOB_ID=5 SLURM_JOB_NODELIST=node[003-004] SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NTASKS=2 \
    SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[003-004] SLURM_STEP_NUM_TASKS=2 \
    SLURM_STEP_TASKS_PER_NODE=1(x2)";

/// Variables of `srun --mpi=pmi2 -N 2 -n 3`, of the last process.
const SRUN_PMI: &str = "PMI_JOBID=2.0 PMI_RANK=2 PMI_SIZE=3 SLURM_JOB_ID=2 SLURM_LOCALID=0 SLURM_NODEID=1 \
    SLURM_NTASKS=3 SLURM_PROCID=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[003-004] SLURM_STEP_NUM_TASKS=3 \
    SLURM_STEP_TASKS_PER_NODE=2,1";

/// Variables of `srun --mpi=pmix -N 2 -n 3`, of the last process.
const SRUN_PMIX: &str = "PMIX_NAMESPACE=slurm.pmix.2.0 PMIX_RANK=2 SLURM_JOB_ID=2 SLURM_LOCALID=0 \
    SLURM_NODEID=1 SLURM_NTASKS=3 SLURM_PROCID=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[003-004] \
    SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1";

/// Variables of `mpiexec -n 3` of MPICH 4.0 within a job of Slurm with 4 tasks, of the last process.
const HYDRA: &str = "MPI_LOCALNRANKS=3 MPI_LOCALRANKID=2 PMI_RANK=2 PMI_SIZE=3 SLURM_LOCALID=0 \
    SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=1 SLURM_STEP_NODELIST=node003 \
    SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1";

/// Returns the placement for an environment of variables `NAME=value`, separated by spaces. If a name occurs
/// twice, the last value counts.
fn place(env: &str) -> Result<Option<Placement>, LauncherError> {
    from_vars(|name| {
        let mut pairs = env.split_whitespace().rev().filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.into())
    })
}

/// Returns the placement for an environment as text, or the text of the error.
fn shown(env: &str) -> String {
    let placement = match place(env) {
        Ok(Some(placement)) => placement,
        Ok(None) => return "none".into(),
        Err(error) => return error.to_string(),
    };
    let Placement { rank, world_size, local_rank, local_world_size, home, job_id, launcher } = placement;
    let local = |number: Option<usize>| number.map_or("-".into(), |number| number.to_string());
    let (local_rank, local_size) = (local(local_rank), local(local_world_size));
    let job_id = job_id.unwrap_or("-".into());
    format!("{launcher:?} {rank}/{world_size} local {local_rank}/{local_size} home {home} job {job_id}")
}

#[track_caller]
fn check(cases: &[(&[&str], &str)]) {
    for (env, expected) in cases {
        let env = env.join(" ");
        assert_eq!(shown(&env), *expected, "of {env}");
    }
}

#[test]
fn environment_of_one_launcher_gives_its_placement() {
    check(&[
        (&[TORCHRUN], "Torchrun 1/2 local 1/2 home localhost:33956 job 7b29338f"),
        (&["RANK=3 WORLD_SIZE=4 MASTER_ADDR=a"], "Torchrun 3/4 local -/- home a:29700 job -"),
        (&[TORCHRUN, "TORCHELASTIC_RUN_ID=none"], "Torchrun 1/2 local 1/2 home localhost:33956 job -"),
        (&[SRUN], "Slurm 4/5 local 0/1 home node003:29700 job 1"),
        (
            &[SRUN, "SLURM_NODEID=0 SLURM_PROCID=1 SLURM_LOCALID=1"],
            "Slurm 1/5 local 1/2 home node003:29700 job 1",
        ),
        (&[SRUN_PMI], "Slurm 2/3 local 0/1 home node003:29700 job 2"),
        (&[SRUN_PMIX], "Slurm 2/3 local 0/1 home node003:29700 job 2"),
        (
            &["PMI_RANK=0 PMI_SIZE=2 PMI_LOCAL_RANK=0 PMI_LOCAL_SIZE=1 MASTER_ADDR=b"],
            "Pmi 0/2 local 0/1 home b:29700 job -",
        ),
        (&["PMIX_RANK=0 MP_WORLD_SIZE=2 MP_ADDR=b"], "Pmi 0/2 local -/- home b:29700 job -"),
        (
            &["JOB_COMPLETION_INDEX=2 WORLD_SIZE=3 MASTER_ADDR=train-0.svc"],
            "Kubernetes 2/3 local -/- home train-0.svc:29700 job -",
        ),
        (
            &["MP_RANK=0 MP_WORLD_SIZE=1 MP_ADDR=c MP_PORT=7 MP_LOCAL_RANK=0 MP_LOCAL_WORLD_SIZE=1"],
            "Explicit 0/1 local 0/1 home c:7 job -",
        ),
    ]);
}

#[test]
fn environment_of_nested_launchers_gives_inner_one() {
    check(&[
        (&[SRUN, TORCHRUN], "Torchrun 1/2 local 1/2 home localhost:33956 job 7b29338f"),
        (&[SBATCH, TORCHRUN], "Torchrun 1/2 local 1/2 home localhost:33956 job 7b29338f"),
        (&[MPIRUN, "MASTER_ADDR=node003"], "OpenMpi 3/4 local 0/1 home node003:29700 job -"),
        (&[MPIRUN, TORCHRUN], "Torchrun 1/2 local 1/2 home localhost:33956 job 7b29338f"),
        (&[HYDRA, "MP_ADDR=node003"], "Pmi 2/3 local 2/3 home node003:29700 job -"),
        // A daemon of PRRTE that is a task of Slurm with the same rank by chance.
        (
            &[SRUN_PMIX, "PMIX_NAMESPACE=prterun-node003-7@1 MP_WORLD_SIZE=9 MP_ADDR=a"],
            "Pmi 2/9 local -/- home a:29700 job -",
        ),
        (&["JOB_COMPLETION_INDEX=0", TORCHRUN], "Torchrun 1/2 local 1/2 home localhost:33956 job 7b29338f"),
        // The batch script is not a task: its rank is not compared.
        (&[SBATCH, "RANK=3 WORLD_SIZE=4 MASTER_ADDR=a"], "Torchrun 3/4 local -/- home a:29700 job -"),
        (
            &[SRUN, TORCHRUN, "MP_RANK=7 MP_WORLD_SIZE=8 MP_ADDR=d MASTER_PORT=1"],
            "Explicit 7/8 local -/- home d:2 job -",
        ),
    ]);
}

#[test]
fn slurm_step_variables_override_job_variables() {
    check(&[
        (
            &[
                SBATCH,
                "SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NODELIST=node005 \
                 SLURM_STEP_TASKS_PER_NODE=1",
            ],
            "Slurm 0/1 local 0/1 home node005:29700 job 1",
        ),
        // Variables that were copied into a container one by one.
        (
            &["SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NTASKS_PER_NODE=2 SLURM_LOCALID=1 SLURM_NODELIST=a7,b"],
            "Slurm 1/4 local 1/2 home a7:29700 job -",
        ),
    ]);
}

#[test]
fn env_without_a_launcher_gives_none() {
    check(&[
        (&[""], "none"),
        (&["RANK= WORLD_SIZE= SLURM_PROCID= MP_RANK="], "none"),
        (&["MASTER_ADDR=a MASTER_PORT=29500 MP_ADDR=b MP_PORT=2"], "none"),
        // A shell of `salloc`, and a batch script with one task.
        (&["SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_JOB_NODELIST=node[1-4] SLURM_TASKS_PER_NODE=1(x4)"], "none"),
        (&[SBATCH, "SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1"], "none"),
    ]);
}

#[test]
fn launcher_address_and_port_follow_the_precedence() {
    let home = |env: &str| place(env).unwrap().unwrap().home.to_string();
    assert_eq!(home(&format!("{SRUN} MASTER_ADDR=ib0 MASTER_PORT=29500")), "ib0:29501");
    assert_eq!(home(&format!("{SRUN} MASTER_ADDR=ib0 MP_ADDR=ib1 MASTER_PORT=1 MP_PORT=9")), "ib1:9");
    for address in ["::1", "[::1]", "fe80::1%eth0", "[2001:db8::a]"] {
        let bare = address.trim_matches(['[', ']']);
        let placement = place(&format!("RANK=0 WORLD_SIZE=1 MASTER_ADDR={address}")).unwrap().unwrap();
        assert_eq!(
            (&*placement.home.host, &*placement.home.to_string()),
            (bare, &*format!("[{bare}]:29700"))
        );
    }
}

#[test]
fn half_set_launcher_pair_names_the_missing_variable() {
    for (env, found, missing) in [
        ("RANK=1", "RANK=1", "WORLD_SIZE"),
        ("WORLD_SIZE=4", "WORLD_SIZE=4", "RANK"),
        ("LOCAL_RANK=0", "LOCAL_RANK=0", "RANK"),
        (&format!("{SRUN} MP_RANK=1"), "MP_RANK=1", "MP_WORLD_SIZE"),
        ("MP_WORLD_SIZE=4", "MP_WORLD_SIZE=4", "MP_RANK"),
        ("OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK"),
        ("PMI_RANK=0", "PMI_RANK=0", "PMI_SIZE"),
    ] {
        let expected = format!(
            "the environment has {found}, but {missing} is not set: a launcher sets both; set both, or none"
        );
        assert_eq!(shown(env), expected);
    }
}

#[test]
fn incomplete_launcher_env_names_missing_variables() {
    check(&[
        (
            &[MPIRUN],
            "the environment has OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4, but MP_ADDR or MASTER_ADDR \
             is not set: the launcher sets no address; set one of them to the host of rank 0, for all ranks",
        ),
        (
            &["PMIX_RANK=1 MASTER_ADDR=a"],
            "the environment has PMIX_RANK=1, but MP_WORLD_SIZE or WORLD_SIZE is not set: the launcher sets \
             no number of ranks; set one of them, for all ranks",
        ),
        (
            &["JOB_COMPLETION_INDEX=1 WORLD_SIZE=2"],
            "the environment has JOB_COMPLETION_INDEX=1 WORLD_SIZE=2, but MP_ADDR or MASTER_ADDR is not set: \
             Kubernetes sets no address; set one of them to <job>-0.<service> in the pod template",
        ),
        (
            &[SRUN, "SLURM_DISTRIBUTION=arbitrary"],
            "the environment has SLURM_PROCID=4 SLURM_STEP_NUM_TASKS=5, but MP_ADDR or MASTER_ADDR is not \
             set: the launcher sets no address; set one of them to the host of rank 0, for all ranks",
        ),
        (
            &[SBATCH],
            "the environment has SLURM_PROCID=0 and SLURM_NTASKS=5, but SLURM_STEP_ID is not set: this \
             process was started by the batch script and not by srun; start it by srun, or set MP_RANK and \
             MP_WORLD_SIZE",
        ),
        (
            &["SLURM_PROCID=3"],
            "the environment has SLURM_PROCID=3, but SLURM_STEP_NUM_TASKS is not set: srun sets it; set \
             MP_RANK and MP_WORLD_SIZE",
        ),
    ]);
}

#[test]
fn contradictory_launcher_env_names_both_sides() {
    check(&[
        (
            &[SRUN, "RANK=0 WORLD_SIZE=5 MASTER_ADDR=a MASTER_PORT=1"],
            "the environment contradicts itself: it has RANK=0 WORLD_SIZE=5 and SLURM_PROCID=4 \
             SLURM_STEP_NUM_TASKS=5, but without LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, \
             which torchrun sets, they have to agree; unset RANK and WORLD_SIZE, or set MP_RANK and \
             MP_WORLD_SIZE",
        ),
        (
            &[SRUN, "WORLD_SIZE=3"],
            "the environment contradicts itself: it has SLURM_STEP_NUM_TASKS=5 and WORLD_SIZE=3, but they \
             have to agree; unset one, or set MP_RANK and MP_WORLD_SIZE",
        ),
        (
            &["RANK=4 WORLD_SIZE=4 MASTER_ADDR=a"],
            "the environment contradicts itself: it has RANK=4 and WORLD_SIZE=4, but a rank is below the \
             number of ranks",
        ),
        (
            &["MP_RANK=0 MP_WORLD_SIZE=0 MASTER_ADDR=a"],
            "the environment contradicts itself: it has MP_RANK=0 and MP_WORLD_SIZE=0, but a rank is below \
             the number of ranks",
        ),
        (
            &[TORCHRUN, "LOCAL_RANK=2"],
            "the environment contradicts itself: it has LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2, but a local \
             rank is below the number of ranks on its host",
        ),
        (
            &[TORCHRUN, "MP_LOCAL_WORLD_SIZE=3"],
            "the environment contradicts itself: it has MP_LOCAL_WORLD_SIZE=3 and WORLD_SIZE=2, but a host \
             has at most as many ranks as the job",
        ),
        (
            &[SRUN, "SLURM_NODEID=3"],
            "the environment contradicts itself: it has SLURM_NODEID=3 and \
             SLURM_STEP_TASKS_PER_NODE=2(x2),1, but the list has no number of tasks for that node; its form \
             is 2(x3),1",
        ),
    ]);
}

#[test]
fn agreeing_rank_leaves_the_launcher_in_use() {
    check(&[
        (&[SRUN, "RANK=4 WORLD_SIZE=5"], "Slurm 4/5 local 0/1 home node003:29700 job 1"),
        (
            &["JOB_COMPLETION_INDEX=1 RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=a"],
            "Kubernetes 1/2 local 0/- home a:29700 job -",
        ),
    ]);
}

#[test]
fn invalid_environment_values_are_named_and_cut() {
    let number = "but a rank or a size is a decimal number from 0, within 64 bits";
    for value in ["-1", "+1", "1.0", "x", "18446744073709551616"] {
        let expected = format!("the environment variable RANK is invalid: found \"{value}\", {number}");
        assert_eq!(shown(&format!("RANK={value} WORLD_SIZE=2")), expected);
    }
    for value in ["0", "65536", "-1", "tcp://10.0.0.1:80"] {
        let expected = format!(
            "the environment variable MP_PORT is invalid: found \"{value}\", but a port is a number from 1 \
             to 65535"
        );
        assert_eq!(shown(&format!("{SRUN} MP_PORT={value}")), expected);
    }
    for value in ["node1:29500", "[node1]", "[::1]:80", "http://a", "a,b", "[::1", "fe80::1%"] {
        let expected = format!(
            "the environment variable MP_ADDR is invalid: found \"{value}\", but an address is a host name, \
             an IPv4 or an IPv6 address, without a port (a port belongs into MP_PORT)"
        );
        assert_eq!(shown(&format!("{SRUN} MP_ADDR={value}")), expected);
    }
    assert_eq!(
        shown(&format!("{TORCHRUN} MASTER_PORT=65535")),
        "the environment variable MASTER_PORT is invalid: found \"65535\", but the home listens on the next \
         port, which is above 65535: set MP_PORT"
    );
    assert_eq!(
        shown(&format!("{SRUN} SLURM_STEP_NODELIST=node[003-{}", "9".repeat(90))),
        format!(
            "the environment variable SLURM_STEP_NODELIST is invalid: found \"node[003-{}… (99 bytes)\", but \
             a list of hosts is of the form node[003-005,9],x7",
            "9".repeat(39)
        )
    );
    let bytes = OsString::from_vec(b"1\xff\n".to_vec());
    let error = from_vars(|name| (name == "RANK").then(|| bytes.clone())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the environment variable RANK is invalid: found \"1\\xff\\n\", but it is not valid UTF-8"
    );
}

#[test]
fn first_host_of_a_list_expands_the_first_name() {
    for (list, host) in [
        ("node[003-005,9],x7", "node003"),
        ("x7,node[1-2]", "x7"),
        ("rack[2-3]n[08,1-4]-ib,a", "rack2n08-ib"),
        ("gnode[10,20,25,37]", "gnode10"),
        ("n[7]", "n7"),
    ] {
        assert_eq!(first_host(list).as_deref(), Some(host), "of {list}");
    }
    for list in [
        "", ",a", "a[", "a]", "a[]", "a[1-]", "a[-1]", "a[2-1]", "a[1,]", "a[[1]]", "a[x]", "a[+1]", "(null)",
    ] {
        assert_eq!(first_host(list), None, "of {list}");
    }
}

#[test]
fn task_count_of_a_malformed_slurm_list_is_none() {
    for list in ["", "2(x", "2(x3", "2(3)", "(x3)", "2,", "-1", "2(x3)4"] {
        assert_eq!(tasks_of_node(list, 9), None, "of {list}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn first_host_is_parsed_from_rendered_slurm_lists(
        parts in prop::collection::vec(("[a-z.-]{1,4}", 0..900u32, 0..9u32, 1..5usize, any::<bool>()), 1..4),
        others in prop::collection::vec("[a-z]{1,3}(\\[[0-9]{1,3}(,[0-9])?\\])?", 0..3),
    ) {
        let (mut list, mut host) = (String::new(), String::new());
        for (name, low, more, width, more_ranges) in parts {
            let high = low + more;
            let ranges = if more == 0 { format!("{low:0width$}") } else { format!("\
                {low:0width$}-{high:0width$}") };
            let rest = if more_ranges { ",950-960,7" } else { "" };
            list += &format!("{name}[{ranges}{rest}]");
            host += &format!("{name}{low:0width$}");
        }
        for other in others {
            list += &format!(",{other}");
        }
        prop_assert_eq!(first_host(&list), Some(host), "of {}", list);
    }

    #[test]
    fn tasks_of_node_equal_expanded_slurm_list(runs in prop::collection::vec((0..9usize, 1..5usize), 1..6)) {
        let items: Vec<_> = runs
            .iter()
            .map(|(tasks, repeats)| if *repeats == 1 { tasks.to_string() } else { format!("\
                {tasks}(x{repeats})") })
            .collect();
        let all: Vec<_> = runs.iter().flat_map(|(tasks, repeats)| vec![*tasks; *repeats]).collect();
        for node in 0..all.len() + 2 {
            prop_assert_eq!(tasks_of_node(&items.join(","), node), all.get(node).copied());
        }
    }

    #[test]
    fn slurm_list_parsers_do_not_panic_on_any_text(list in "\\PC*|[a-z0-9,()x\\[\\]-]*", node: usize) {
        let _ = (first_host(&list), tasks_of_node(&list, node));
    }
}

#[test]
fn tls_file_variables_are_set_together_or_not_at_all() {
    let files = |set: &'static [&str]| {
        super::tls_files(move |name| set.contains(&name).then(|| format!("{name}.pem").into()))
    };
    assert_eq!(files(&[]), Ok(None));
    let all = files(&["MP_TLS_KEY", "MP_TLS_CA", "MP_TLS_CERT"]).unwrap().expect("all are set");
    assert_eq!(all, ["MP_TLS_CA.pem", "MP_TLS_CERT.pem", "MP_TLS_KEY.pem"]);
    let partial = files(&["MP_TLS_KEY", "MP_TLS_CA"]).unwrap_err().to_string();
    assert!(partial.contains("has MP_TLS_CA and MP_TLS_KEY, but MP_TLS_CERT is not set"), "{partial}");
    assert_eq!(super::tls_files(|_| Some("".into())), Ok(None));
}

/// Returns the key of the configuration, or the text of the error.
fn key_of(vars: &[(&str, &Path)]) -> Result<Option<Vec<u8>>, String> {
    let get = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
    let config = ClusterConfig::from_vars(get).map_err(|error| error.to_string())?;
    Ok(config.key.map(|key| key.as_ref().to_vec()))
}

#[test]
fn cluster_key_comes_from_a_variable_or_a_file() {
    let path = std::env::temp_dir().join(format!("mp-net-key-{}", std::process::id()));
    let write = |text: &[u8], mode| {
        // A file may be read-only.
        _ = fs::remove_file(&path);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        key_of(&[("MP_CLUSTER_KEY_FILE", &path)])
    };
    assert_eq!(write(b"a secret\n", 0o600), Ok(Some(b"a secret".to_vec())));
    assert_eq!(write(b"a\n\n", 0o440), Ok(Some(b"a\n".to_vec())), "the group may read it");
    for (text, mode, why) in [
        (b"a secret".as_slice(), 0o644, "other users can access it (mode 644)"),
        (b"\n", 0o600, "it is empty"),
        (&[b'x'; 5000], 0o600, "it is longer than 4096 bytes"),
    ] {
        let error = write(text, mode).unwrap_err();
        assert!(error.contains(why) && !error.contains("a secret"), "{error}");
    }
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(1), None).unwrap();
        let error = key_of(&[("MP_CLUSTER_KEY_FILE", &path)]).unwrap_err();
        assert!(error.contains("its owner is another user (1)"), "{error}");
    }
    let secret = Path::new("a secret");
    assert_eq!(key_of(&[("MP_CLUSTER_KEY", secret)]), Ok(Some(b"a secret".to_vec())));
    assert_eq!(key_of(&[("MP_CLUSTER_KEY", Path::new("a secret\n"))]), Ok(Some(b"a secret".to_vec())));
    assert_eq!(key_of(&[("MP_CLUSTER_KEY", Path::new(""))]), Ok(None));
    let both = key_of(&[("MP_CLUSTER_KEY", secret), ("MP_CLUSTER_KEY_FILE", &path)]).unwrap_err();
    assert!(both.contains("only one of them may be set") && !both.contains("a secret"), "{both}");
    fs::remove_file(&path).unwrap();
    let missing = key_of(&[("MP_CLUSTER_KEY_FILE", &path)]).unwrap_err();
    assert!(missing.contains("No such file") && !missing.contains("mp-net-key"), "{missing}");
    let folder = key_of(&[("MP_CLUSTER_KEY_FILE", Path::new("/"))]).unwrap_err();
    assert!(folder.contains("it is not a regular file"), "{folder}");
}
