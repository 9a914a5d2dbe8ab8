"""`rayrec jobs list|show|logs|stop`: the jobs of a Ray cluster."""

import datetime
from typing import TYPE_CHECKING, Any, Literal

from jobs.entry_point import Job, main
from jobs.request import Request
from jobs.result import Result
from jobs.text_table import text_table
from rayrec.common.errors import ConfigError
from rayrec.common.progress import Progress

if TYPE_CHECKING:
    from cluster.job_client import JobState


class JobsRequest(Request):
    """Ask after the jobs of a cluster, or stop one."""

    action: Literal["list", "show", "logs", "stop"]
    """`list` shows all, the others are about one."""
    job: str | None = None
    """Its id, as `submit` and `list` show it."""
    address: str | None = None
    """URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS, RAY_ADDRESS, else http://127.0.0.1:8265."""
    follow: bool = False
    """Of `logs`: go on until the job is over."""

    def check(self) -> None:
        if self.action == "list" and self.job is not None:
            raise ConfigError(f"'list' shows all jobs; leave '{self.job}' out, or use show")
        if self.action != "list" and self.job is None:
            raise ConfigError(f"'{self.action}' needs the id of a job; `rayrec jobs list` shows them")


def run(request: JobsRequest, progress: Progress) -> Result:
    """`details.jobs` are the jobs in question, `details.log` what one has printed."""
    from cluster.job_client import JobClient

    client = JobClient(request.address)
    details: dict[str, Any] = {"action": request.action}
    if request.job is None:
        states = client.jobs()
    elif request.action == "stop":
        progress.stage(f"stop {request.job}")
        states = [client.stop(request.job)]
    elif request.action == "logs":
        states = [client.follow(request.job, progress.message) if request.follow else client.state(request.job)]
        details["log"] = "" if request.follow else client.logs(request.job)
    else:
        states = [client.state(request.job)]
    return Result(command="jobs", details={**details, "jobs": [_as_json(state) for state in states]})


def _as_json(state: "JobState") -> dict[str, Any]:
    started = None
    if state.started is not None:
        started = datetime.datetime.fromtimestamp(state.started, datetime.UTC).isoformat(timespec="seconds")
    return {
        "job": state.job,
        "status": state.status,
        "exit_code": state.exit_code,
        "started": started,
        "seconds": state.seconds,
        "metadata": state.metadata,
        "entrypoint": state.entrypoint,
        "message": state.message,
    }


def describe(result: Result) -> str:
    """A table of the jobs, the fields of one, or its log."""
    jobs: list[dict[str, Any]] = result.details["jobs"]
    match result.details["action"]:
        case "list":
            shown = ("job", "status", "exit_code", "started", "seconds")
            return text_table([{name: job[name] for name in shown} for job in jobs]) if jobs else "no jobs"
        case "logs":
            log: str = result.details["log"]
            return log.rstrip("\n")
        case "stop":
            return f"{jobs[0]['job']}: {jobs[0]['status'].lower()}"
        case _:
            return "\n".join(f"{name:<11} {value}" for name, value in jobs[0].items() if value not in (None, {}, ""))


JOB = Job("jobs", JobsRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(JOB))
