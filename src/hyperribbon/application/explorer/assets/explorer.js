// A slider's handle is what a screen reader meets: it gets the name of the control around it.
new MutationObserver(() => {
    for (const handle of document.querySelectorAll('[role=slider]:not([aria-label])')) {
        const control = handle.closest('.control, .bar');
        const label = control && control.getAttribute('aria-label');
        if (label) { handle.setAttribute('aria-label', label); }
    }
    for (const file of document.querySelectorAll('input[type=file]:not([aria-label])')) {
        file.setAttribute('aria-label', 'Choose a file');
    }
}).observe(document.documentElement, {childList: true, subtree: true});

// The numbers of a figure, one row per point.
function rows(plot) {
    const rows = [['curve', 'x', 'y', 'value']];
    for (const trace of plot._fullData) {
        const name = trace.name ?? '';
        if (trace.type === 'heatmap') {
            trace.z.forEach((line, i) => Array.from(line).forEach((value, j) => {
                rows.push([name, trace.x[j], trace.y[i], value]);
            }));
        } else if (trace.x && trace.y) {
            Array.from(trace.x).forEach((x, i) => {
                rows.push([name, x, trace.y[i], trace.z ? trace.z[i] : '']);
            });
        }
    }
    return rows;
}

// Export buttons save the figure they belong to, as an image or as its numbers.
document.addEventListener('click', event => {
    const button = event.target.closest('.exports button');
    if (!button) { return; }
    const plot = button.closest('figure').querySelector('.js-plotly-plot');
    const filename = button.parentElement.dataset.name;
    const kind = button.textContent.toLowerCase();
    if (kind !== 'csv') {
        window.Plotly.downloadImage(plot, {format: kind, width: 900, height: 560, filename});
        return;
    }
    const quote = cell => {
        const text = String(cell ?? '');
        return /[",\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
    };
    const text = rows(plot).map(row => row.map(quote).join(',')).join('\n') + '\n';
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([text], {type: 'text/csv'}));
    link.download = filename + '.csv';
    link.click();
    URL.revokeObjectURL(link.href);
});

// What is typed into a search box goes to a store beside it once one pauses. Dash would write its
// own copy back into the box, over characters that were typed meanwhile.
let pause = null;
document.addEventListener('input', event => {
    const box = event.target;
    if (!['home-search', 'table-filter'].includes(box.id)) { return; }
    event.stopImmediatePropagation();
    clearTimeout(pause);
    pause = setTimeout(() => {
        window.dash_clientside.set_props(box.id + '-typed', {data: box.value});
    }, 150);
}, true);
