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

/// For commands of `exuvia datastore` that answer a question.
pub(super) const DATASTORE: &str = "\
Exit codes:
  0    yes: it is valid, nothing stands in the way, there are no conflicts, every source has its target
  1    no, and why
  2    there was no answer: wrong usage, an invalid file, no cluster, or a right that is missing
  130  interrupted (SIGINT); 143: stopped by SIGTERM";
