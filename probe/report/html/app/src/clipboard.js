// Copying, and what helps where a browser does not allow it.

/** Mark the text that an element shows, so that Ctrl+C copies it. */
function mark(element) {
  if (element.select) {
    element.focus();
    element.select();
    return;
  }
  getSelection().selectAllChildren(element);
}

/** Copy a text, or mark it in the element that shows it; returns what to tell of it. */
export async function copied(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return "copied";
  } catch { // no clipboard, or not allowed
    mark(element);
    return "marked: Ctrl+C copies it";
  }
}
