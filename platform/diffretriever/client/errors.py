"""What a call of the client can raise: one base, and a class for each thing that a caller may do about it."""

from __future__ import annotations

from schemas.serve import Problem


class ClientError(Exception):
    """Base of all that the client raises once it is made; nothing of the HTTP library comes through."""


class ProblemError(ClientError):
    """The service refused the request and said why (RFC 9457).

    Attributes:
        problem: the whole answer.
        status: HTTP status, such as 422.
        field: the part of the request that is wrong, where one is.
        fix: what to do about it.
    """

    def __init__(self, status: int, problem: Problem) -> None:
        self.problem = problem
        self.status = status
        self.field = problem.field
        self.fix = problem.fix
        where = f"{problem.field}: " if problem.field else ""
        super().__init__(f"{status} {where}{problem.detail.rstrip('.')}. {problem.fix}")


class AnswerError(ClientError):
    """Something answered, but not what this client understands: another program, a proxy, or another version."""


class UnreachableError(ClientError):
    """No answer: the connection was refused or lost, the time was up, or all that answers is a proxy that is busy."""
