"""Print what a program needs of an answer: python read_answer.py report.json."""

import json
import sys

answer = json.load(open(sys.argv[1], encoding="utf-8"))
print(answer["verdict"], [reason["code"] for reason in answer["reasons"]], answer["left_out"])
for found in answer["divergences"]:  # in causal order; fix the first one only
    place = found["b"][0] if found["b"] else found["a"][0]
    print(place["step"], found["phase"], found["kind"], found["role"], place["path"] or "(the whole model)")
    print("  code:", f"{place['file'].rpartition('/')[2]}:{place['line']}", "confidence:", found["confidence"])
    print("  facts:", *(f"{fact['code']}: {fact['text']};" for fact in found["facts"]))
    print("  look at:", found["hint"])
    print("  verified:", [(hint["name"], hint["numbers"]) for hint in found["hints"] if hint["verified"]])
