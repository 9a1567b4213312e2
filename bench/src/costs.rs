//! What one migration costs, counted from outside: requests by a recording proxy, writes by etcd, memory by the kernel.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;

use crate::baseline::{Baseline, Costs, growth};
use crate::contest::Arena;
use crate::contestants::Run;

/// How often each case runs. The smallest figures count: chance, such as a retry or a late page, only adds to them.
const RUNS: usize = 3;

/// What is migrated, and how.
#[derive(Clone, Copy)]
enum Case {
    /// Every API server is accounted for: one request per object, and a sample.
    Proof,
    /// Every object is patched twice.
    Full,
    /// The storage version has a default that the old one lacks: two writes per object (docs/decisions/007-ownership.md).
    NewDefault,
}

impl Case {
    const ALL: [Self; 3] = [Self::Proof, Self::Full, Self::NewDefault];

    fn name(self) -> &'static str {
        match self {
            Self::Proof => "proof",
            Self::Full => "full",
            Self::NewDefault => "new default",
        }
    }

    fn verify(self) -> &'static str {
        match self {
            Self::Proof | Self::NewDefault => "proof",
            Self::Full => "full",
        }
    }
}

/// Measures all cases and compares them with the committed figures, or writes them there.
pub(crate) async fn check(
    exuvia: &Path,
    objects: usize,
    committed: &Path,
    update: bool,
) -> anyhow::Result<()> {
    let arena = Arena::without_rivals().await?;
    let mut measured = Baseline {
        objects,
        ..Baseline::default()
    };
    println!(
        "{:<12} {:>9} {:>16} {:>20}",
        "case", "heap MiB", "requests/object", "etcd writes/object"
    );
    for case in Case::ALL {
        let mut costs = arena.costs(case, objects, exuvia).await?;
        for _ in 1..RUNS {
            costs = costs.smallest(arena.costs(case, objects, exuvia).await?);
        }
        println!(
            "{:<12} {:>9.1} {:>16.3} {:>20.3}",
            case.name(),
            costs.peak_heap_mib,
            costs.requests_per_object,
            costs.etcd_writes_per_object
        );
        measured.cases.insert(case.name().to_owned(), costs);
    }
    if update {
        std::fs::write(committed, serde_json::to_string_pretty(&measured)? + "\n")
            .with_context(|| format!("cannot write {}", committed.display()))?;
        println!("wrote {}", committed.display());
        return Ok(());
    }
    let text = std::fs::read_to_string(committed)
        .with_context(|| format!("cannot read {}: measure it with --update", committed.display()))?;
    let before: Baseline = serde_json::from_str(&text)
        .with_context(|| format!("{} does not hold figures", committed.display()))?;
    let complaints = growth(&before, &measured);
    anyhow::ensure!(
        complaints.is_empty(),
        "against {}:\n  {}\nif that is wanted, run `cargo xtask bench --check --update`, commit the file, and say why",
        committed.display(),
        complaints.join("\n  ")
    );
    println!("nothing grew by more than 10 % against {}", committed.display());
    Ok(())
}

impl Arena {
    async fn costs(&self, case: Case, objects: usize, exuvia: &Path) -> anyhow::Result<Costs> {
        let widgets = self.flipped_with(objects, |crd| {
            if let Case::NewDefault = case {
                let schema = &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"];
                schema["properties"]["spec"]["properties"]["grade"] =
                    json!({"type": "string", "default": "a"});
            }
        });
        let widgets = widgets.await?;
        let proxy = self.control_plane.proxy().await?;
        let run = Run {
            program: exuvia,
            kubeconfig: self.control_plane.admin().clone().at(proxy.url()).kubeconfig()?,
            // A pool that finds its own size would make memory depend on the machine.
            args: [
                &widgets.crd_name(),
                "--verify",
                case.verify(),
                "--max-concurrency",
                "8",
            ]
            .map(str::to_owned)
            .into(),
            settle: Duration::ZERO,
        };
        let before = self.control_plane.etcd().revision().await?;
        let (measured, _) = self.exuvia(run).await?;
        let revisions = self.control_plane.etcd().revision().await? - before;
        let requests = proxy.requests().len();
        self.check_and_remove(&widgets, objects).await?;
        #[allow(clippy::cast_precision_loss)]
        let per_object = |count: f64| count / objects as f64;
        #[allow(clippy::cast_precision_loss)]
        Ok(Costs {
            peak_heap_mib: measured.peak_heap_mib.context("the memory was not measured")?,
            requests_per_object: per_object(requests as f64),
            etcd_writes_per_object: per_object(revisions as f64),
        })
    }
}
