"""An inspection in at most six sentences: the number, what it means, what is usual, what to do.

Names load on first use: a stored inspection is read without torch.
"""

from typing import TYPE_CHECKING

from hyperribbon.core.lazy import lazy_attributes

if TYPE_CHECKING:
    from hyperribbon.application.inspection.answers.reference import Reference, kind_of
    from hyperribbon.application.inspection.answers.sentences import Answer, answers, describe_usual
    from hyperribbon.application.inspection.answers.terms import TERMS, Term

__all__ = ["TERMS", "Answer", "Reference", "Term", "answers", "describe_usual", "kind_of"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__)
