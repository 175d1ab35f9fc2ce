"""What the client scripts share: how a check ends, and the comparison with the golden logits."""

import json
import sys

FAILED = 3  # not 1, which is also how Python ends on an exception: a control must be able to tell a finding from a crash


def finish(good, figure):
    """Prints the one line of a client script and ends it."""
    print(figure)
    sys.exit(0 if good else FAILED)


def compare_logits(logits_of, golden, generation, note="", tolerance=1e-3):
    """Ends the script with the largest difference of last-position logits over all prompts.

    logits_of takes a list of token ids and gives the float32 logits of the position after them, [vocabulary]. golden is the path of a
    float32 file [prompts, vocabulary], generation that of generation.json, whose "prompts" have "ids".
    """
    import numpy

    with open(generation) as f:
        prompts = [p["ids"] for p in json.load(f)["prompts"]]
    expected = numpy.fromfile(golden, "<f4").reshape(len(prompts), -1)
    found = numpy.stack([logits_of(ids) for ids in prompts])
    worst = float(numpy.abs(found - expected).max())  # NaN where any logit is NaN, and NaN is within no tolerance
    top = int((found.argmax(1) == expected.argmax(1)).sum())
    figure = f"max difference {worst:.2g} of logits over {len(prompts)} prompts, top token equal in {top}"
    finish(worst <= tolerance and top == len(prompts), "; ".join(filter(None, (figure, note))))
