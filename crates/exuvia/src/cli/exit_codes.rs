//! What exit codes mean, in one place for the help texts. An answer is 0, 1 or 3; 2 says that there was none.

/// For all commands.
pub(super) const ALL: &str = "\
Exit codes:
  0    done, or yes
  1    no: a migration stalled or failed, a version is held, a check found something, or one of several
       clusters could not be looked at
  2    there was no answer: wrong usage, an invalid file, no cluster, or a right that is missing
  3    not known (`exuvia storage droppable` only)
  130  interrupted (SIGINT); 143: stopped by SIGTERM";

/// For `exuvia storage migrate`.
pub(super) const MIGRATE: &str = "\
Exit codes:
  0    every resource is migrated, or was clean
  1    a resource stalled, failed or was not finished: what is said of it names the cause; or, with
       --require-droppable, an old version may not be dropped
  2    nothing was begun: wrong usage, no cluster, or a right that is missing
  130  interrupted (SIGINT), 143: stopped by SIGTERM; the same command continues where it stopped";

/// For a command of `exuvia datastore` that answers a question: what its yes and its no are.
macro_rules! datastore {
    ($yes:literal, $no:literal) => {
        concat!(
            "Exit codes:\n  0    ",
            $yes,
            "\n  1    ",
            $no,
            "\n  2    there was no answer: wrong usage, a file that cannot be read, no cluster, or a right that is missing\n  130  \
             interrupted (SIGINT); 143: stopped by SIGTERM"
        )
    };
}

/// For `exuvia datastore validate`.
pub(super) const VALIDATE: &str = datastore!(
    "every DatastoreMigration is valid",
    "one is not: each fault is named with its place"
);
/// For `exuvia datastore plan`.
pub(super) const DATASTORE_PLAN: &str = datastore!(
    "nothing stands in the way of the migration",
    "something does, and is named: a migration that is started now waits until that is resolved"
);
/// For `exuvia datastore start`.
pub(super) const START: &str = "\
Exit codes:
  0    the migration is created. Not: it can go on. If something stands in its way, it waits, and nothing is
       frozen; `exuvia datastore plan -f FILE` says that before, `exuvia datastore status NAME` afterwards
  1    with --watch: it has failed
  2    nothing was created: wrong usage, an invalid file, no cluster, or a right that is missing
  130  interrupted (SIGINT) before it was created; 143: stopped by SIGTERM";
/// For `exuvia datastore conflicts`.
pub(super) const CONFLICTS: &str =
    datastore!("there are no conflicts", "there are conflicts, and each is shown");
/// For `exuvia datastore verify`.
pub(super) const VERIFY: &str = datastore!(
    "every source has its target, and every target its source",
    "one has not, and how many is said"
);
/// For `exuvia datastore render`.
pub(super) const RENDER: &str = datastore!(
    "all files are converted, or need not be",
    "a document cannot be converted, and no file was written"
);
